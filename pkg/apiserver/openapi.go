package apiserver

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	endpointsopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/openapi"
)

// configureOpenAPI serves both OpenAPI documents, which kubectl apply, explain and diff require.
func configureOpenAPI(config *genericapiserver.Config, version string) {
	namer := endpointsopenapi.NewDefinitionNamer(newPublishedScheme())
	info := spec.InfoProps{Title: "knative-apiserver", Version: version}

	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIConfig.Info.InfoProps = info
	config.OpenAPIConfig.PostProcessSpec = hideStrategicMergePatchV2

	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	config.OpenAPIV3Config.Info.InfoProps = info
	config.OpenAPIV3Config.PostProcessSpec = hideStrategicMergePatchV3
}

// Names of models that differ from their Go types.
const (
	revisionSpecModel  = "dev.knative.serving.v1.RevisionSpec"
	containerModel     = "dev.knative.serving.v1.Container"
	containerPortModel = "dev.knative.serving.v1.ContainerPort"

	coreContainerModel     = "io.k8s.api.core.v1.Container"
	coreContainerPortModel = "io.k8s.api.core.v1.ContainerPort"
)

// definitions returns the generated models with one difference: in a revision template, the name of a container and the number
// of a port are optional. Server-side apply identifies list items by these keys, so the schema must contain their defaults. The
// models of core/v1, which have none, stay unchanged.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := openapi.GetOpenAPIDefinitions(ref)

	port := withDefault(all[coreContainerPortModel], "containerPort", servingv1.DefaultContainerPort,
		"Number of the port that requests are sent to. Optional; defaults to 8080.")
	all[containerPortModel] = port

	container := withDefault(all[coreContainerModel], "name", servingv1.DefaultContainerName,
		"Name of the container, a DNS label, unique in the Revision. Optional; defaults to user-container, or user-container-N if the Revision has several containers.")
	container.Schema.Properties["ports"] = withItems(container.Schema.Properties["ports"], ref(containerPortModel))
	container.Dependencies = append(container.Dependencies, containerPortModel)
	all[containerModel] = container

	revision := all[revisionSpecModel]
	properties := copyProperties(revision.Schema.Properties)
	properties["containers"] = withItems(properties["containers"], ref(containerModel))
	properties["enableServiceLinks"] = withDescription(properties["enableServiceLinks"],
		"EnableServiceLinks injects the addresses of all core Services of the namespace into the environment. Optional; defaults to false when the object is created.")
	revision.Schema.Properties = properties
	revision.Dependencies = append(revision.Dependencies, containerModel)
	all[revisionSpecModel] = revision
	return all
}

func withDefault(d common.OpenAPIDefinition, property string, value any, description string) common.OpenAPIDefinition {
	d.Schema.Properties = copyProperties(d.Schema.Properties)
	p := withDescription(d.Schema.Properties[property], description)
	p.Default = value
	d.Schema.Properties[property] = p
	required := sets.New(d.Schema.Required...).Delete(property)
	d.Schema.Required = sets.List(required)
	d.Dependencies = append([]string(nil), d.Dependencies...)
	return d
}

func withDescription(s spec.Schema, description string) spec.Schema {
	s.Description = description
	return s
}

func withItems(list spec.Schema, item spec.Ref) spec.Schema {
	list.Items = &spec.SchemaOrArray{Schema: &spec.Schema{SchemaProps: spec.SchemaProps{
		Default: map[string]any{},
		Ref:     item,
	}}}
	return list
}

func copyProperties(properties map[string]spec.Schema) map[string]spec.Schema {
	copied := make(map[string]spec.Schema, len(properties))
	for name, schema := range properties {
		copied[name] = schema
	}
	return copied
}

// templateKinds are the kinds with a revision template, in which container names are optional.
//
// Clients that compute a strategic merge patch themselves cannot find such containers: kubectl apply would print two warnings
// before it falls back to a JSON merge patch, which it has always sent for Knative's kinds. The documents therefore do not
// advertise strategic merge patches for them. The server still accepts them.
var templateKinds = sets.New("Service", "Configuration")

const kindExtension = "x-kubernetes-group-version-kind"

func hasTemplate(extensions spec.Extensions) bool {
	var gvk metav1.GroupVersionKind
	return extensions.GetObject(kindExtension, &gvk) == nil && gvk.Group == servingv1.GroupName && templateKinds.Has(gvk.Kind)
}

func hideStrategicMergePatchV2(document *spec.Swagger) (*spec.Swagger, error) {
	for _, path := range document.Paths.Paths {
		if path.Patch != nil && hasTemplate(path.Patch.Extensions) {
			var consumes []string
			for _, mediaType := range path.Patch.Consumes {
				if mediaType != string(types.StrategicMergePatchType) {
					consumes = append(consumes, mediaType)
				}
			}
			path.Patch.Consumes = consumes
		}
	}
	return document, nil
}

func hideStrategicMergePatchV3(document *spec3.OpenAPI) (*spec3.OpenAPI, error) {
	if document.Paths == nil {
		return document, nil
	}
	for _, path := range document.Paths.Paths {
		if path.Patch != nil && path.Patch.RequestBody != nil && hasTemplate(path.Patch.Extensions) {
			delete(path.Patch.RequestBody.Content, string(types.StrategicMergePatchType))
		}
	}
	return document, nil
}
