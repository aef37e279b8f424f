package apiserver

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/lru"
)

// negotiatedSerializer offers what our kinds can be read and written in. Protobuf is not among it: a client that would
// rather have protobuf then gets the next best it accepts, such as JSON; else it would be told 406, although
// JSON was on its list.
type negotiatedSerializer struct {
	runtime.NegotiatedSerializer
	mediaTypes []runtime.SerializerInfo
}

func newNegotiatedSerializer(generic runtime.NegotiatedSerializer, encoded *lru.Cache) runtime.NegotiatedSerializer {
	s := negotiatedSerializer{NegotiatedSerializer: generic}
	for _, info := range generic.SupportedMediaTypes() {
		switch info.MediaType {
		case runtime.ContentTypeProtobuf:
			continue
		case runtime.ContentTypeJSON:
			info.Serializer = listSerializer{info.Serializer, encoded}
		}
		s.mediaTypes = append(s.mediaTypes, info)
	}
	return s
}

// SupportedMediaTypes returns the encodings of requests and answers.
func (s negotiatedSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.mediaTypes }
