package apiserver

import (
	"k8s.io/apimachinery/pkg/runtime"
)

// negotiatedSerializer offers the encodings of this server's kinds. Without protobuf in the list, a client that prefers
// protobuf gets the next encoding it accepts, such as JSON. Otherwise it would receive status 406, even though it accepts JSON.
type negotiatedSerializer struct {
	runtime.NegotiatedSerializer
	mediaTypes []runtime.SerializerInfo
}

func newNegotiatedSerializer(generic runtime.NegotiatedSerializer, encoded *listCache) runtime.NegotiatedSerializer {
	s := negotiatedSerializer{NegotiatedSerializer: generic}
	for _, info := range generic.SupportedMediaTypes() {
		switch info.MediaType {
		case runtime.ContentTypeProtobuf:
			continue
		case runtime.ContentTypeJSON:
			info.Serializer = listSerializer{info.Serializer, encoded, compactJSON}
			info.PrettySerializer = listSerializer{info.PrettySerializer, encoded, indentedJSON}
		case runtime.ContentTypeYAML:
			info.Serializer = listSerializer{info.Serializer, encoded, yamlText}
		}
		s.mediaTypes = append(s.mediaTypes, info)
	}
	return s
}

// SupportedMediaTypes returns the encodings of requests and responses.
func (s negotiatedSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.mediaTypes }
