package doors

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestInvocation covers callers of a restricted Service by tokens and permissions of the host: denied, allowed, and revoked.
func TestInvocation(t *testing.T) {
	t.Parallel()
	s, address := newSpace(t, "callers", `serving.knative.dev/invocation: rbac`)
	roots, cluster := hostAuthority(t), node.AsCluster()
	untilServed(t, roots, strings.TrimPrefix(address, "https://"))
	c := client(t, roots, true)
	cluster.ServiceAccount(t, s.Name, "caller")
	const user = "Knative-Serving-User"
	name := "system:serviceaccount:" + s.Name + ":caller"
	token, err := cluster.Token(t.Context(), s.Name, "caller", address)
	if err != nil {
		t.Fatal(err)
	}
	another, err := cluster.Token(t.Context(), s.Name, "caller", "https://another.example.com")
	if err != nil {
		t.Fatal(err)
	}
	untilAnswered(t, "no token is unauthorized", c, address+"/headers", "", http.StatusUnauthorized)
	for what, test := range map[string]struct {
		token string
		code  int
	}{
		"a token of another audience": {another, http.StatusUnauthorized},
		"a token that is none":        {"secret", http.StatusUnauthorized},
		"without permission":          {token, http.StatusForbidden},
	} {
		// A gateway rejects a request with another code if the host is too slow to review it.
		eventually(t, fmt.Sprintf("%s is answered with %d", what, test.code), func(ctx context.Context) error {
			got, err := send(ctx, c, address+"/headers", test.token)
			if err != nil {
				return err
			}
			if got.code == http.StatusOK || strings.Contains(got.body, user) {
				t.Fatalf("%s: %+v, want %d", what, got, test.code)
			}
			if got.code != test.code {
				return fmt.Errorf("got %+v", got)
			}
			return nil
		})
	}

	cluster.Bind(t, s.Name, name, "ClusterRole", "knative-serving-invoker")
	body := untilAnswered(t, "the permission takes effect", c, address+"/headers", token, http.StatusOK)
	if !strings.Contains(body, `"`+user+`":["`+name+`"]`) || strings.Contains(body, token) {
		t.Errorf("the application gets %s", body)
	}
	trust := []string{"--cacert", file(t, hostCertificates(t))}
	if result, body, err := curl(t.Context(), "gateway", address+"/headers", "", trust...); err != nil || !strings.HasPrefix(result, "401 ") {
		t.Errorf("curl without a token: %s %s, %v", result, body, err)
	}
	// Each gateway caches decisions for ten seconds.
	eventually(t, "the permission takes effect for curl", func(ctx context.Context) error {
		result, body, err := curl(ctx, "gateway", address+"/headers", "", append(trust, "--header", "Authorization: Bearer "+token)...)
		if err == nil && (!strings.HasPrefix(result, "200 ") || !strings.Contains(body, name)) {
			err = fmt.Errorf("got %s: %s", result, body)
		}
		return err
	})
	bindings := node.Host.RbacV1().RoleBindings(s.Name)
	if err := bindings.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	untilAnswered(t, "the permission is withdrawn", c, address+"/headers", token, http.StatusForbidden)
}

// TestServiceProxy covers requests to a private Service through the API server, with kubectl alone.
func TestServiceProxy(t *testing.T) {
	t.Parallel()
	image, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	s := node.NewSpace(t, "proxy")
	s.Apply(t, `
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello, labels: {networking.knative.dev/visibility: cluster-local}}
spec: {template: {spec: {containers: [{image: "`+image+`"}]}}}`)
	s.Ready(t, "service/hello")
	path := "/apis/serving.knative.dev/v1/namespaces/" + s.Name + "/services/hello/proxy/headers"
	kubectl := harness.NewKubectl(t, node.Kubeconfig, s.Name)
	harness.Eventually(t, "the application gets the request", func() error {
		got := kubectl.Run(t, "", "get", "--raw", path)
		if got.Code != 0 {
			return fmt.Errorf("%+v", got)
		}
		if !strings.Contains(got.Stdout, `"Knative-Serving-User"`) || strings.Contains(got.Stdout, `"Authorization"`) {
			t.Errorf("the application gets %s", got.Stdout)
		}
		return nil
	})

	cluster := node.AsCluster()
	user, err := harness.NewClients(cluster.ServiceAccount(t, s.Name, "user"))
	if err != nil {
		t.Fatal(err)
	}
	if response := user.Do(t, harness.Request{Method: http.MethodGet, Path: path}); response.Code != http.StatusForbidden {
		t.Errorf("without a role: %d %s", response.Code, response.Body)
	}
	cluster.Bind(t, s.Name, "system:serviceaccount:"+s.Name+":user", "ClusterRole", "edit")
	eventually(t, "the role takes effect", func(ctx context.Context) error {
		response, err := user.Send(ctx, harness.Request{Method: http.MethodGet, Path: path})
		if err != nil {
			return err
		}
		if response.Code != http.StatusOK {
			return fmt.Errorf("%d %s", response.Code, response.Body)
		}
		return nil
	})

	// A response that has begun is forwarded while it continues, and WebSockets work in both directions.
	base := user.Config.Host + strings.TrimSuffix(path, "headers")
	streaming, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(streaming, http.MethodGet, base+"goodbye", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := user.HTTP.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if line, err := bufio.NewReader(response.Body).ReadString('\n'); line != "data: hello\n" || err != nil {
		t.Errorf("the response begins with %q, %v", line, err)
	}
	trust, err := rest.TLSConfigFor(user.Config)
	if err != nil {
		t.Fatal(err)
	}
	dialer := websocket.Dialer{TLSClientConfig: trust, HandshakeTimeout: patience}
	conn, upgrade, err := dialer.DialContext(t.Context(), "wss"+strings.TrimPrefix(base, "https")+"ws", http.Header{"Authorization": {"Bearer " + user.Config.BearerToken}})
	if err != nil {
		t.Fatal(err)
	}
	upgrade.Body.Close()
	defer conn.Close()
	want := strings.Repeat("message ", 10_000)
	if err := conn.WriteMessage(websocket.TextMessage, []byte(want)); err != nil {
		t.Fatal(err)
	}
	if _, got, err := conn.ReadMessage(); string(got) != want || err != nil {
		t.Errorf("a message came back with %d bytes, %v", len(got), err)
	}
}
