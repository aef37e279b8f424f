package v1

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// BrokerPartitionsAnnotationKey is the number of partitions of a Broker, 1 by default. Each accepts and delivers a share of the events
	// on a replica of its own, as far as there are as many. The number can only be raised.
	BrokerPartitionsAnnotationKey = GroupName + "/partitions"
	// MaxBrokerPartitions is the greatest number of partitions.
	MaxBrokerPartitions = 16
)

// Partitions returns the number of partitions of a Broker, 1 if its annotation is missing or invalid.
func (b *Broker) Partitions() int {
	if n, err := partitionsOf(b.Annotations[BrokerPartitionsAnnotationKey]); err == nil {
		return n
	}
	return 1
}

func partitionsOf(annotation string) (int, error) {
	n, err := strconv.Atoi(annotation)
	if err != nil || n < 1 || n > MaxBrokerPartitions {
		return 0, fmt.Errorf("must be a number from 1 to %d", MaxBrokerPartitions)
	}
	return n, nil
}

// validatePartitions returns the errors of the number of partitions. Other implementations may give the annotation another meaning.
func (b *Broker) validatePartitions(annotations *field.Path) field.ErrorList {
	value, found := b.Annotations[BrokerPartitionsAnnotationKey]
	if !found || b.IsForeign() {
		return nil
	}
	if _, err := partitionsOf(value); err != nil {
		return field.ErrorList{field.Invalid(annotations.Key(BrokerPartitionsAnnotationKey), value, err.Error())}
	}
	return nil
}

// validateFewerPartitions returns an error if a Broker has fewer partitions than the one that it replaces.
func (b *Broker) validateFewerPartitions(old *Broker, annotations *field.Path) field.ErrorList {
	if b.IsForeign() || b.Partitions() >= old.Partitions() {
		return nil
	}
	return field.ErrorList{field.Invalid(annotations.Key(BrokerPartitionsAnnotationKey), b.Annotations[BrokerPartitionsAnnotationKey],
		fmt.Sprintf("must be at least %d: partitions may have undelivered events", old.Partitions()))}
}
