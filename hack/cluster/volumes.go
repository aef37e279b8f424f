//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	// storageClass is the cluster's default class of volumes: directories of the node.
	storageClass = "standard"
	// provisionerName is the provisioner of that class.
	provisionerName = "cluster.local/directories"
	// provisionedBy and selectedNode are the annotations by which the volume controllers and provisioners communicate.
	provisionedBy = "pv.kubernetes.io/provisioned-by"
	selectedNode  = "volume.kubernetes.io/selected-node"
)

// metadata is the part of an object's metadata that the provisioner reads.
type metadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace,omitempty"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

// claim is a PersistentVolumeClaim.
type claim struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		StorageClassName string   `json:"storageClassName"`
		VolumeName       string   `json:"volumeName"`
		VolumeMode       string   `json:"volumeMode"`
		AccessModes      []string `json:"accessModes"`
		Resources        struct {
			Requests map[string]string `json:"requests"`
		} `json:"resources"`
	} `json:"spec"`
}

// volume is the part of a PersistentVolume that the provisioner reads.
type volume struct {
	Metadata metadata `json:"metadata"`
	Status   struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// provisioner creates a volume for each claim of the storage class, and deletes it with its data once the claim is deleted.
type provisioner struct {
	client *client
	server string // URL of kube-apiserver
	dir    string // of the volumes
}

// run provisions until ctx is canceled.
func (p *provisioner) run(ctx context.Context) {
	go p.follow(ctx, "/api/v1/persistentvolumeclaims", func(object []byte) error {
		var c claim
		if err := json.Unmarshal(object, &c); err != nil {
			return err
		}
		if !c.wanted() {
			return nil
		}
		return p.create(ctx, &c)
	})
	p.follow(ctx, "/api/v1/persistentvolumes", func(object []byte) error {
		var v volume
		if err := json.Unmarshal(object, &v); err != nil {
			return err
		}
		if v.Metadata.Annotations[provisionedBy] != provisionerName || v.Status.Phase != "Released" {
			return nil
		}
		return p.delete(ctx, v.Metadata.Name)
	})
}

// wanted reports whether the claim waits for a volume: the scheduler has assigned its Pod to a node.
func (c *claim) wanted() bool {
	return c.Spec.StorageClassName == storageClass && c.Spec.VolumeName == "" && c.Spec.VolumeMode != "Block" &&
		c.Metadata.Annotations[selectedNode] != ""
}

// volumeFor returns the PersistentVolume for a claim.
func (p *provisioner) volumeFor(c *claim) map[string]any {
	name := "pvc-" + c.Metadata.UID
	return map[string]any{
		"apiVersion": "v1",
		"kind":       "PersistentVolume",
		"metadata":   metadata{Name: name, Annotations: map[string]string{provisionedBy: provisionerName}},
		"spec": map[string]any{
			"storageClassName":              storageClass,
			"persistentVolumeReclaimPolicy": "Delete",
			"accessModes":                   c.Spec.AccessModes,
			"capacity":                      map[string]string{"storage": c.Spec.Resources.Requests["storage"]},
			"claimRef": map[string]string{
				"apiVersion": "v1", "kind": "PersistentVolumeClaim",
				"namespace": c.Metadata.Namespace, "name": c.Metadata.Name, "uid": c.Metadata.UID,
			},
			"local": map[string]string{"path": filepath.Join(p.dir, name)},
			"nodeAffinity": map[string]any{"required": map[string]any{"nodeSelectorTerms": []any{map[string]any{
				"matchExpressions": []any{map[string]any{
					"key": "kubernetes.io/hostname", "operator": "In", "values": []string{nodeName},
				}},
			}}}},
		},
	}
}

func (p *provisioner) create(ctx context.Context, c *claim) error {
	path := filepath.Join(p.dir, "pvc-"+c.Metadata.UID)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	// Any user of a Pod may write to it, as on a dedicated disk, regardless of the umask.
	if err := os.Chmod(path, 0o777); err != nil {
		return err
	}
	body, err := json.Marshal(p.volumeFor(c))
	if err != nil {
		return err
	}
	return p.call(ctx, http.MethodPost, "/api/v1/persistentvolumes", body, http.StatusConflict)
}

func (p *provisioner) delete(ctx context.Context, name string) error {
	if err := os.RemoveAll(filepath.Join(p.dir, name)); err != nil {
		return err
	}
	return p.call(ctx, http.MethodDelete, "/api/v1/persistentvolumes/"+name, nil, http.StatusNotFound)
}

// call fails unless the server answers with success, or with the status that it was done before.
func (p *provisioner) call(ctx context.Context, method, path string, body []byte, done int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	response, err := p.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if answer, _ := io.ReadAll(io.LimitReader(response.Body, 4096)); response.StatusCode >= 300 && response.StatusCode != done {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	return nil
}

func (p *provisioner) request(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, p.server+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	return p.client.Do(request)
}

// get returns a successful answer.
func (p *provisioner) get(ctx context.Context, path string) (*http.Response, error) {
	response, err := p.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("GET %s: %s", path, response.Status), response.Body.Close())
	}
	return response, nil
}

// follow calls handle with every object of a collection, initially and after changes, until ctx is canceled. After a failure it
// lists again.
func (p *provisioner) follow(ctx context.Context, path string, handle func(object []byte) error) {
	for ctx.Err() == nil {
		if err := p.listAndWatch(ctx, path, handle); err != nil && ctx.Err() == nil {
			log.Printf("following %s: %v", path, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (p *provisioner) listAndWatch(ctx context.Context, path string, handle func(object []byte) error) error {
	response, err := p.get(ctx, path)
	if err != nil {
		return err
	}
	var list struct {
		Metadata metadata          `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	err = errors.Join(json.NewDecoder(response.Body).Decode(&list), response.Body.Close())
	if err != nil {
		return err
	}
	for _, item := range list.Items {
		if err := handle(item); err != nil {
			return err
		}
	}
	response, err = p.get(ctx, path+"?watch=true&resourceVersion="+list.Metadata.ResourceVersion)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	decoder := json.NewDecoder(response.Body)
	for {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		switch err := decoder.Decode(&event); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			if err := handle(event.Object); err != nil {
				return err
			}
		case "ERROR":
			return fmt.Errorf("the watch failed: %s", event.Object)
		}
	}
}
