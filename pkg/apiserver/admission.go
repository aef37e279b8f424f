package apiserver

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/knative-apiserver/knative-apiserver/pkg/admission/podtemplate"
)

// addAdmissionPlugins adds ours to those that every aggregated server runs (namespace lifecycle, webhooks,
// policies). Quota comes last, as in kube-apiserver: it charges only for what everything else let through.
func addAdmissionPlugins(options *genericoptions.AdmissionOptions) {
	podtemplate.Register(options.Plugins)
	resourcequota.Register(options.Plugins)
	options.RecommendedPluginOrder = append(options.RecommendedPluginOrder, podtemplate.PluginName, resourcequota.PluginName)
}

// admissionInitializers hands the plugins what the generic initializers do not.
func admissionInitializers(*genericapiserver.RecommendedConfig) ([]admission.PluginInitializer, error) {
	return []admission.PluginInitializer{quotaInitializer{}}, nil
}

// quotaInitializer configures object count quota: every resource of ours counts as count/<resource>.<group>.
type quotaInitializer struct{}

func (quotaInitializer) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(generic.NewConfiguration(nil, nil))
	}
}
