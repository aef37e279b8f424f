package apiserver

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/pkg/admission/podtemplate"
)

// addAdmissionPlugins adds this server's plugins to the plugins of every aggregated server (namespace lifecycle, webhooks,
// policies). Quota is last, as in kube-apiserver: it charges only for objects that all other plugins admitted.
func addAdmissionPlugins(options *genericoptions.AdmissionOptions) {
	podtemplate.Register(options.Plugins)
	resourcequota.Register(options.Plugins)
	options.RecommendedPluginOrder = append(options.RecommendedPluginOrder, podtemplate.PluginName, resourcequota.PluginName)
}

// admissionInitializers returns the initializers of this server's plugins, in addition to the generic ones.
func admissionInitializers(config *genericapiserver.RecommendedConfig, defaults podtemplate.Defaults) ([]admission.PluginInitializer, error) {
	// Each write of a template sends one request to the host. The host's priority and fairness limits them, not the
	// client.
	hostConfig := rest.CopyConfig(config.ClientConfig)
	hostConfig.QPS = -1
	hostConfig.ContentType = runtime.ContentTypeProtobuf
	host, err := kubernetes.NewForConfig(hostConfig)
	if err != nil {
		return nil, fmt.Errorf("create client of the host cluster for admission: %w", err)
	}
	return []admission.PluginInitializer{podtemplate.Initializer(host, config.SharedInformerFactory, defaults), quotaInitializer{}}, nil
}

// quotaInitializer configures object count quota: every resource of this server counts as count/<resource>.<group>.
type quotaInitializer struct{}

func (quotaInitializer) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(generic.NewConfiguration(nil, nil))
	}
}
