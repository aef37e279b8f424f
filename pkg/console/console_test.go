package console

import (
	"bufio"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// newConsole returns a Console of an API that is not reachable.
func newConsole(t *testing.T) *Console {
	t.Helper()
	c, err := New(Options{Config: &rest.Config{Host: "http://127.0.0.1:1"}, Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestGuard checks that only the page that the user opened reaches the console.
func TestGuard(t *testing.T) {
	c := newConsole(t)
	cookies := http.Header{"Cookie": {cookie + "=" + c.secret}}
	for name, test := range map[string]struct {
		method, target, host string
		header               http.Header
		want                 int
	}{
		"no secret":                   {target: "/namespaces/shop", want: http.StatusUnauthorized},
		"wrong secret":                {target: "/?token=x", want: http.StatusUnauthorized},
		"secret of another page":      {target: "/namespaces/shop?token=" + c.secret, want: http.StatusUnauthorized},
		"wrong cookie":                {target: "/static/style.css", header: http.Header{"Cookie": {cookie + "=x"}}, want: http.StatusUnauthorized},
		"secret":                      {target: "/?token=" + c.secret, want: http.StatusSeeOther},
		"cookie":                      {target: "/static/style.css", header: cookies, want: http.StatusOK},
		"name of another host":        {target: "/static/style.css", host: "rebound.example.com", header: cookies, want: http.StatusMisdirectedRequest},
		"localhost":                   {target: "/static/style.css", host: "localhost:8080", header: cookies, want: http.StatusOK},
		"IPv6":                        {target: "/static/style.css", host: "[::1]:8080", header: cookies, want: http.StatusOK},
		"start":                       {target: "/", header: cookies, want: http.StatusSeeOther},
		"unknown page":                {target: "/none", header: cookies, want: http.StatusNotFound},
		"API that is not reachable":   {target: "/namespaces/shop/services", header: cookies, want: http.StatusBadGateway},
		"form of another page":        {method: http.MethodPost, target: "/namespaces/shop/services", header: http.Header{"Cookie": cookies["Cookie"], "Sec-Fetch-Site": {"cross-site"}}, want: http.StatusForbidden},
		"form of a page of that host": {method: http.MethodPost, target: "/namespaces/shop/services", header: http.Header{"Cookie": cookies["Cookie"], "Sec-Fetch-Site": {"same-origin"}}, want: http.StatusMethodNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			method := test.method
			if method == "" {
				method = http.MethodGet
			}
			r := httptest.NewRequestWithContext(t.Context(), method, test.target, http.NoBody)
			r.Host = "127.0.0.1:8080"
			if test.host != "" {
				r.Host = test.host
			}
			for name, values := range test.header {
				r.Header[name] = values
			}
			w := httptest.NewRecorder()
			c.Handler().ServeHTTP(w, r)
			if w.Code != test.want {
				t.Errorf("got %d %s, want %d", w.Code, w.Body, test.want)
			}
			if w.Code != http.StatusForbidden && w.Header().Get("Content-Security-Policy") != policy {
				t.Error("there is no Content-Security-Policy")
			}
		})
	}
}

// TestServe opens the address that is printed.
func TestServe(t *testing.T) {
	c := newConsole(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Serve(t.Context(), listener) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL(listener), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if want := "/namespaces/shop"; res.Request.URL.Path != want || res.Request.URL.RawQuery != "" {
		t.Errorf("the address leads to %s, want %s", res.Request.URL, want)
	}
}

// TestStream checks that an event arrives as it was sent, whichever characters end its lines.
func TestStream(t *testing.T) {
	w := httptest.NewRecorder()
	s, err := newStream(w)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.send("content", "a\nb\r\nc\rdata: d\n\nevent: e"); err != nil {
		t.Fatal(err)
	}
	var got []string
	lines := bufio.NewScanner(strings.NewReader(w.Body.String()))
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if lines.Text() != "" && lines.Text() != "event: content" && !ok {
			t.Errorf("line %q is not part of the event", lines.Text())
		}
		if ok {
			got = append(got, data)
		}
	}
	if want := "a|b|c|data: d||event: e"; strings.Join(got, "|") != want {
		t.Errorf("the data is %q, want %q", strings.Join(got, "|"), want)
	}
}
