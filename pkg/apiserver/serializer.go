package apiserver

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// withoutProtobuf offers every encoding but protobuf, which our kinds do not have. A client that would rather
// have protobuf then gets the next best it accepts, such as JSON; else it would be told 406, although JSON was
// on its list.
type withoutProtobuf struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes returns the encodings of requests and answers.
func (s withoutProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes()), func(info runtime.SerializerInfo) bool {
		return info.MediaType == runtime.ContentTypeProtobuf
	})
}
