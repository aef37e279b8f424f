//go:build linux

package process

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/spawn"
)

// sampleVariable makes this test binary a sample application, or a server, instead of running the tests.
const sampleVariable = "PROCESS_TEST_SAMPLE"

func TestMain(m *testing.M) {
	spawn.Helper()
	switch os.Getenv(sampleVariable) {
	case "":
		os.Exit(m.Run())
	case "serve":
		serveSample()
	case "exit":
		fmt.Println(os.Getenv("STDOUT"))
		fmt.Fprint(os.Stderr, os.Getenv("STDERR"))
		code, _ := strconv.Atoi(os.Getenv("CODE"))
		os.Exit(code)
	case "signal":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "sleep":
		// This bounds the time if the tests do not kill the process.
		<-time.After(time.Minute)
	case "server":
		runServer()
	default:
		os.Exit(64)
	}
}

// facts describe the process of a sample.
type facts struct {
	Args, Env []string
	Dir       string
	Pid       int
	// StdinEnded is true if stdin is at its end.
	StdinEnded bool
	// Files are the open descriptors except for 0 to 2 and the Go runtime's.
	Files []string
	// Started and Listening are times.
	Started, Listening time.Time
}

func serveSample() {
	f := facts{Args: os.Args[1:], Env: os.Environ(), Pid: os.Getpid(), Started: time.Now()}
	f.Dir, _ = os.Getwd()
	_, err := os.Stdin.Read(make([]byte, 1))
	f.StdinEnded = err != nil
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		target, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if n, _ := strconv.Atoi(entry.Name()); err == nil && n > 2 && !strings.Contains(target, "anon_inode") {
			f.Files = append(f.Files, target)
		}
	}
	if os.Getenv("IGNORE_TERM") != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	if os.Getenv("CHILDREN") != "" {
		// One child stays in the process group, one leaves it. Both outlive their parent.
		for _, setsid := range []bool{false, true} {
			child := exec.Command("/proc/self/exe")
			child.Env = append(os.Environ(), sampleVariable+"=sleep")
			child.SysProcAttr = &syscall.SysProcAttr{Setsid: setsid}
			if err := child.Start(); err != nil {
				panic(err)
			}
		}
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", os.Getenv("PORT")))
	if err != nil {
		panic(err)
	}
	f.Listening = time.Now()
	if os.Getenv("GRPC") != "" {
		server := grpc.NewServer()
		checks := health.NewServer()
		checks.SetServingStatus("sample", grpc_health_v1.HealthCheckResponse_SERVING)
		grpc_health_v1.RegisterHealthServer(server, checks)
		_ = server.Serve(listener)
		return
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(os.Getenv("H2C") == "")
	protocols.SetUnencryptedHTTP2(os.Getenv("H2C") != "")
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(f) })
	mux.HandleFunc("/file", serveFile)
	mux.HandleFunc("/healthy", func(w http.ResponseWriter, _ *http.Request) {
		// The sample is healthy while a file exists.
		if _, err := os.Stat(os.Getenv("HEALTHY_FILE")); err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("/exit", func(http.ResponseWriter, *http.Request) {
		fmt.Fprintln(os.Stderr, "exits on request")
		os.Exit(3)
	})
	_ = (&http.Server{Handler: mux, Protocols: protocols}).Serve(listener)
}

// runServer runs a server that starts a Revision with children, prints its address, and waits to be killed.
func runServer() {
	rt, err := New(Options{DataDir: os.Getenv("DATA_DIR"), Objects: &fakeObjects{}, Logger: klog.Background()})
	if err != nil {
		panic(err)
	}
	r := sample("left", "serve", "CHILDREN=1")
	if path := os.Getenv("VOLUME"); path != "" {
		mounted(r, "empty", path, "", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	}
	rt.Subscribe(func(_ types.NamespacedName, s workload.State) {
		if s.Ready == 1 {
			fmt.Println(s.Instances[0].Address)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = rt.Apply(ctx, r, true)
	_ = rt.Scale(ctx, keyOf(r), 1)
	rt.Run(ctx)
}
