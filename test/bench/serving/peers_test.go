package serving

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"text/template"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// peer is a proxy of another project. It forwards all requests to one application, like a gateway with one route.
type peer struct {
	name string
	// config is the template of its configuration, args are the arguments, with which it runs in the foreground on the configuration in a file.
	config *template.Template
	args   func(file string) []string
}

// peerOptions are what configurations of peers depend on.
type peerOptions struct {
	// Listen and Upstream are the addresses, host:port, of the peer and of the application.
	Listen, Upstream string
	// H2C is true for HTTP/2 without TLS on both sides, otherwise both speak HTTP/1.1.
	H2C bool
	Dir string
}

// peers keep as many connections to the application as they have clients, use all processors, and log no requests.
var peers = []*peer{
	{
		name: "nginx",
		args: func(file string) []string { return []string{"-c", file} },
		config: template.Must(template.New("nginx").Parse(`
daemon off;
user root;
worker_processes auto;
pid {{.Dir}}/nginx.pid;
error_log stderr crit;
events { worker_connections 4096; }
http {
  access_log off;
  client_body_temp_path {{.Dir}}/body;
  proxy_temp_path {{.Dir}}/proxy;
  fastcgi_temp_path {{.Dir}}/fastcgi;
  uwsgi_temp_path {{.Dir}}/uwsgi;
  scgi_temp_path {{.Dir}}/scgi;
  keepalive_requests 1000000000;
  map $http_upgrade $hop { default upgrade; '' ''; }
  upstream app { server {{.Upstream}}; keepalive 512; keepalive_requests 1000000000; }
  server {
    listen {{.Listen}}{{if .H2C}} http2{{end}};
    location / {
{{- if .H2C}}
      grpc_pass grpc://app;
{{- else}}
      proxy_pass http://app;
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header Connection $hop;
      proxy_set_header Upgrade $http_upgrade;
{{- end}}
    }
  }
}
`)),
	},
	{
		name: "haproxy",
		args: func(file string) []string { return []string{"-db", "-f", file} },
		config: template.Must(template.New("haproxy").Parse(`
defaults
  mode http
  option forwardfor
  timeout client 60s
  timeout server 60s
  timeout connect 5s
  timeout tunnel 60s
frontend clients
  bind {{.Listen}}{{if .H2C}} proto h2{{end}}
  default_backend app
backend app
  http-reuse always
  server app {{.Upstream}}{{if .H2C}} proto h2{{end}}
`)),
	},
}

// start runs the peer and returns its address, host:port, or "" if it is not installed.
func (p *peer) start(b *testing.B, upstream string, h2c bool) string {
	b.Helper()
	program, err := exec.LookPath(p.name)
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/" + p.name)
	}
	if err != nil {
		b.Logf("%s is left out, because it is not installed: apt-get install nginx-light haproxy", p.name)
		return ""
	}
	number, err := port.Stable()
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	o := peerOptions{Listen: net.JoinHostPort("127.0.0.1", strconv.Itoa(number)), Upstream: upstream, H2C: h2c, Dir: dir}
	file := filepath.Join(dir, p.name+".conf")
	config, err := os.Create(file)
	if err != nil {
		b.Fatal(err)
	}
	if err := p.config.Execute(config, &o); err != nil {
		b.Fatal(err)
	}
	if err := config.Close(); err != nil {
		b.Fatal(err)
	}
	process, err := harness.StartProcess(nil, program, p.args(file)...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := process.Stop(); err != nil {
			b.Error(err)
		}
	})
	harness.Eventually(b, p.name+" accepts connections", func() error {
		conn, err := new(net.Dialer).DialContext(context.WithoutCancel(b.Context()), "tcp", o.Listen)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, process.Log())
		}
		return conn.Close()
	})
	return o.Listen
}
