// Package console serves web pages about the objects of a user: the flow of events, Services with their Revisions, where an event is, and
// why a Revision has its scale. It sees what the API shows to the user, and may do what the API allows the user to do.
package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

const (
	// cookie has the secret of the address, so that other users and pages of the machine cannot use the console.
	cookie = "knative-console"
	// secretParameter is the query parameter of the address with the secret.
	secretParameter = "token"
	// maxForm bounds the body of a request, in bytes.
	maxForm = 64 << 10
	// shutdownTimeout bounds the wait for requests at the end.
	shutdownTimeout = time.Second
)

// policy is the Content-Security-Policy: pages load nothing from other servers, and no other page embeds them.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

var (
	//go:embed static
	static embed.FS
	//go:embed templates
	templateFiles embed.FS
)

// Options configure a Console.
type Options struct {
	// Config connects to the API as the user.
	Config *rest.Config
	// Namespace is the namespace that is shown first.
	Namespace string
}

// Console serves the pages.
type Console struct {
	namespace string
	knative   versioned.Interface
	core      kubernetes.Interface
	templates *template.Template
	secret    string
	samples   samples
	// live limits the number of pages with updates.
	live chan struct{}
}

// New returns a Console. It sends no request to the API.
func New(o Options) (*Console, error) {
	knative, err := versioned.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	core, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	templates, err := template.New("").Funcs(functions).ParseFS(templateFiles, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("parse templates: %w", err)
	}
	return &Console{namespace: o.Namespace, knative: knative, core: core, templates: templates, secret: rand.Text(), live: make(chan struct{}, maxLive)}, nil
}

// URL returns the address to open in a browser, for a listener of Serve. Whoever has it can use the console.
func (c *Console) URL(listener net.Listener) string {
	return fmt.Sprintf("http://%s/?%s=%s", listener.Addr(), secretParameter, c.secret)
}

// Serve serves the pages at a listener, which should have a loopback address, until the context ends.
func (c *Console) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: c.Handler(), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: maxForm,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve the console: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(stopping); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("stop the console: %w", err)
	}
	return nil
}

// Handler returns the handler of all pages.
func (c *Console) Handler() http.Handler {
	pages := http.NewServeMux()
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // the directory is embedded
	}
	pages.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(files)))
	pages.HandleFunc("GET /{$}", c.start)
	for pattern, act := range c.actions() {
		pages.Handle("POST "+pattern, c.handle(act))
	}
	for pattern, page := range c.pages() {
		pages.Handle("GET "+pattern, c.show(page))
		pages.Handle("GET /live"+pattern, c.updates(page))
	}
	pages.HandleFunc("GET /live/namespaces/{namespace}/services/{name}/logs", c.logs)
	return c.guard(pages)
}

// guard rejects requests that do not come from the page that the user opened: other users of the machine do not have the secret, other
// pages in the browser cannot send its cookie, and host names that an attacker resolves to this address are refused.
func (c *Console) guard(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return protection.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cache-Control", "no-store")
		if !isLocal(r.Host) {
			http.Error(w, "The console is reached by the address that was printed.", http.StatusMisdirectedRequest)
			return
		}
		if given := r.URL.Query().Get(secretParameter); r.Method == http.MethodGet && r.URL.Path == "/" && c.isSecret(given) {
			http.SetCookie(w, &http.Cookie{Name: cookie, Value: given, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			http.Redirect(w, r, "/", http.StatusSeeOther)
			return
		}
		if given, err := r.Cookie(cookie); err != nil || !c.isSecret(given.Value) {
			http.Error(w, "Open the console by the address that was printed: it has a token.", http.StatusUnauthorized)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		next.ServeHTTP(w, r)
	}))
}

func (c *Console) isSecret(given string) bool {
	return subtle.ConstantTimeCompare([]byte(given), []byte(c.secret)) == 1
}

// isLocal reports whether an authority is an IP address or localhost, and not a name that others control.
func isLocal(authority string) bool {
	host := (&url.URL{Host: authority}).Hostname()
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost"
}
