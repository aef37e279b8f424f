package components

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/route"
	"github.com/knative-apiserver/knative-apiserver/pkg/events"
	"github.com/knative-apiserver/knative-apiserver/pkg/runtime/process"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// standaloneDomain is that of public host names: it resolves to this machine by itself.
const standaloneDomain = "localhost"

const (
	// stopTimeout is how long requests under way may go on when the server ends.
	stopTimeout = 10 * time.Second
	// accessLogMegabytes is the size at which the access log begins anew, accessLogBackups how many old ones
	// are kept.
	accessLogMegabytes, accessLogBackups = 100, 3
)

// StandaloneOptions are what Standalone needs to know.
type StandaloneOptions struct {
	// DataDir is where instances are recorded and their logs kept.
	DataDir string
	// ConfigDir has the ConfigMaps of the settings; empty means that there are none.
	ConfigDir string
	// AccessLog is the path of the access log; "-" stands for standard error.
	AccessLog string
	// Listener takes the requests to revisions.
	Listener net.Listener
	// Stop is called when a part has ended that should not have, since the rest is of no use without it. It has
	// the context of Start end. See Wait.
	Stop func()
}

// Standalone is Knative Serving on this machine: revisions run as processes.
type Standalone struct {
	options  StandaloneOptions
	settings *settings.Store
	faults   *faults

	running sync.WaitGroup
	// mu guards err: why parts have ended that should not have.
	mu  sync.Mutex
	err error
}

// NewStandalone reads the settings and follows them until ctx ends. An error tells that the directory cannot
// be read; what is wrong in it is reported by Events.
func NewStandalone(ctx context.Context, options StandaloneOptions) (*Standalone, error) {
	s := &Standalone{options: options, settings: settings.NewStore(settings.Default(standaloneDomain)), faults: &faults{}}
	if options.ConfigDir == "" {
		return s, nil
	}
	if err := s.settings.WatchDir(ctx, options.ConfigDir, s.faults.report); err != nil {
		return nil, fmt.Errorf("reading --config-dir: %w", err)
	}
	return s, nil
}

// APISettings are the settings in force that the API depends on.
func (s *Standalone) APISettings() servingv1.Settings { return s.settings.API() }

// URL is where the gateway is reached.
func (s *Standalone) URL() string {
	return "http://" + net.JoinHostPort(standaloneDomain, strconv.Itoa(s.port()))
}

func (s *Standalone) port() int { return s.options.Listener.Addr().(*net.TCPAddr).Port }

// Start starts everything, through the API server that config reaches as the controllers, and returns once
// requests are served. Everything ends with ctx; see Wait.
func (s *Standalone) Start(ctx context.Context, config *rest.Config) error {
	processes, err := process.New(process.Options{
		DataDir:      filepath.Join(s.options.DataDir, "revisions"),
		Logger:       klog.FromContext(ctx).WithName("processes"),
		DrainTimeout: stopTimeout,
	})
	if err != nil {
		return err
	}
	s.run(ctx, func(ctx context.Context) error { processes.Run(ctx); return nil })

	recorder, _, err := events.NewRecorder(ctx, config, "knative-apiserver")
	if err != nil {
		return err
	}
	s.faults.recordBy(recorder)
	log := s.accessLog()
	serving, err := newServing(ctx, servingOptions{
		config:         config,
		runtime:        processes,
		settings:       s.settings,
		recorder:       recorder,
		accessLog:      log,
		urls:           route.URLs{Port: s.port(), PublicAddress: true},
		collectGarbage: true,
		stopTimeout:    stopTimeout,
	})
	if err != nil {
		return err
	}
	err = serving.prepare(ctx, func(part func(context.Context)) {
		s.run(ctx, func(ctx context.Context) error { part(ctx); return nil })
	})
	if err != nil {
		return err
	}
	s.run(ctx, func(ctx context.Context) error {
		// Nothing is written any more when serve returns.
		defer closeLog(ctx, log)
		return serving.serve(ctx, s.options.Listener)
	})
	return nil
}

// accessLog returns the access log, which rotates by size and is opened when it is first written to.
func (s *Standalone) accessLog() io.WriteCloser {
	if s.options.AccessLog == "-" {
		return standardError{os.Stderr}
	}
	return &lumberjack.Logger{Filename: s.options.AccessLog, MaxSize: accessLogMegabytes, MaxBackups: accessLogBackups}
}

func closeLog(ctx context.Context, log io.Closer) {
	if err := log.Close(); err != nil {
		klog.FromContext(ctx).Error(err, "Closing the access log failed")
	}
}

// standardError stays open for all others who write to it.
type standardError struct{ io.Writer }

func (standardError) Close() error { return nil }

// run has a part run until ctx ends. If it fails before, everything else ends too.
func (s *Standalone) run(ctx context.Context, part func(context.Context) error) {
	s.running.Go(func() {
		if err := part(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Serving ended")
			s.mu.Lock()
			s.err = errors.Join(s.err, err)
			s.mu.Unlock()
			s.options.Stop()
		}
	})
}

// Wait returns when everything that Start started has ended: no request is under way, no process runs. Start must
// have returned before. The error tells why a part ended before the context of Start did.
func (s *Standalone) Wait() error {
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
