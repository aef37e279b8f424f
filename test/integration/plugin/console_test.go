package plugin

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// patience bounds a step of the browser.
const patience = 30 * time.Second

var screenshot = flag.Bool("screenshot", false, "Write the screenshot of the README to docs/images.")

// browser is a tab of a real browser with the console.
type browser struct {
	context.Context
	origin string

	mu sync.Mutex
	// requested are the URLs that the browser requested, complaints are what it reported about the pages.
	requested, complaints []string
}

// newBrowser starts the console with the plugin, and opens the address that it prints.
func newBrowser(t *testing.T, p *harness.Plugin) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("CI needs a browser: the package chromium of Debian")
		}
		t.Skip("no browser is installed: the package chromium of Debian has one")
	}
	console := p.Start(t, "console")
	var address *url.URL
	harness.Eventually(t, "the console prints its address", func() error {
		line, _, complete := strings.Cut(console.Log(), "\n")
		var err error
		if address, err = url.Parse(strings.TrimSpace(line)); err != nil || !complete {
			return fmt.Errorf("it printed %q: %w", line, err)
		}
		return nil
	})
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(patience))
	allocated, end := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(end)
	tab, closeTab := chromedp.NewContext(allocated)
	t.Cleanup(closeTab)
	b := &browser{Context: tab, origin: address.Scheme + "://" + address.Host}
	err := chromedp.Listen(tab, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			b.requested = append(b.requested, e.Request.URL)
		case *runtime.EventExceptionThrown:
			b.complaints = append(b.complaints, e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			b.complaints = append(b.complaints, string(e.Type))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	requests := chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, network.Enable, network.EnableParams{})
		return err
	})
	b.do(t, "open the address", requests, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(address.String()))
	return b
}

// do does what a person does. Elements are waited for.
func (b *browser) do(t *testing.T, what string, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatalf("%s: %v\nthe page is:\n%s", what, err, b.text())
	}
}

// get returns what an action finds.
func get[T any](t *testing.T, b *browser, action chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, patience)
	defer cancel()
	found, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// text returns what the page shows.
func (b *browser) text() string {
	ctx, cancel := context.WithTimeout(b.Context, 10*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Text(chromedp.CSS("body")))
	if err != nil {
		return err.Error()
	}
	return text
}

// reads waits until the page shows texts.
func (b *browser) reads(t *testing.T, texts ...string) {
	t.Helper()
	harness.Eventually(t, "the page shows "+strings.Join(texts, ", "), func() error {
		page := b.text()
		for _, text := range texts {
			if !strings.Contains(page, text) {
				return fmt.Errorf("there is no %q on the page:\n%s", text, page)
			}
		}
		return nil
	})
}

// follow clicks a link or button by its text.
func (b *browser) follow(t *testing.T, text string) {
	t.Helper()
	b.do(t, "click "+text, chromedp.Click(fmt.Sprintf(`//*[self::a or self::button][contains(normalize-space(.), %q)]`, text)))
}

// inspect checks what holds on each page: screen readers know the name of each control, the content fits in the width, also of a phone, and
// nothing comes from elsewhere.
func (b *browser) inspect(t *testing.T, name string) {
	t.Helper()
	var nodes []*accessibility.Node
	b.do(t, "read the accessibility tree", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		tree, err := cdp.Call(ctx, target, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		nodes = tree.Nodes
		return err
	}))
	roles := map[string]int{}
	for _, node := range nodes {
		if node.Ignored || node.Role == nil {
			continue
		}
		var role, label string
		for value, to := range map[*accessibility.Value]*string{node.Role: &role, node.Name: &label} {
			if value != nil {
				if err := json.Unmarshal(value.Value, to); err != nil {
					t.Fatal(err)
				}
			}
		}
		roles[role]++
		switch role {
		case "link", "button", "textbox", "combobox", "image", "meter":
			if label == "" {
				t.Errorf("%s: a %s has no name for screen readers", name, role)
			}
		}
	}
	if roles["main"] != 1 || roles["navigation"] != 1 || roles["heading"] == 0 {
		t.Errorf("%s: the landmarks are %v", name, roles)
	}
	for _, width := range []int64{390, 1280} {
		b.do(t, "resize", chromedp.EmulateViewport(width, 900))
		overflow := get(t, b, chromedp.Evaluate[int64]("document.documentElement.scrollWidth - window.innerWidth"))
		if overflow > 0 {
			t.Errorf("%s: at a width of %d px the page is %d px wider", name, width, overflow)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, address := range b.requested {
		if !strings.HasPrefix(address, b.origin+"/") {
			t.Errorf("%s: the browser requested %s", name, address)
		}
	}
	if len(b.complaints) > 0 {
		t.Errorf("%s: the browser reported %q", name, b.complaints)
	}
}

// screenshot writes the picture of the README.
func (b *browser) screenshot(t *testing.T) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	image := get(t, b, chromedp.CaptureScreenshot())
	if err := os.WriteFile(filepath.Join(root, "docs", "images", "console.png"), image, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestConsole does in a browser what a person does with the console.
func TestConsole(t *testing.T) {
	t.Parallel()
	const namespace = "console"
	shared.shop(t, namespace)
	p := harness.NewPlugin(t, shared.kubeconfig(t, namespace), namespace)
	b := newBrowser(t, p)
	b.reads(t, "Event flow", "Broker orders: ready", "Trigger failing", "Channel mails: ready", "Live")
	b.inspect(t, "flow")
	// The second sample of the metrics comes while the page is open.
	b.reads(t, "Trigger hello [type=com.example.order]: ready · no events", "Service hello: ready · 0 requests/s")
	// A change is shown without a reload.
	p.Must(t, "", "delete", "trigger", "refunds")
	harness.Eventually(t, "the deleted Trigger vanishes", func() error {
		if page := b.text(); strings.Contains(page, "refunds") {
			return fmt.Errorf("the page is:\n%s", page)
		}
		return nil
	})

	b.follow(t, "Services")
	b.reads(t, "hello-00001", "100 %", "Ready")
	b.inspect(t, "services")
	b.follow(t, "hello-00001")
	b.reads(t, "Decisions", "Target for one instance", "of 1 instances")
	b.inspect(t, "scale")
	b.follow(t, "Services")
	b.do(t, "open the Service", chromedp.Click(`//h2/a[.="hello"]`))
	b.reads(t, "Logs", "1001")
	b.inspect(t, "service")

	// By keyboard only.
	b.follow(t, "Find an event")
	b.do(t, "ask for an event", chromedp.Focus(chromedp.ID("id")), chromedp.SendKeys(chromedp.ID("id"), "1001"+kb.Enter))
	b.reads(t, "accepted by Broker orders", "Trigger hello: Delivered", "Trigger failing: DeadLettered", "Subscription archive: Delivered")
	b.inspect(t, "events")
	if *screenshot {
		b.screenshot(t)
	}
	b.follow(t, "Dead letters")
	b.reads(t, "There are no dead letters")
	shared.breakTrigger(t, namespace)
	harness.Eventually(t, "the dead letter is shown", func() error {
		b.follow(t, "Dead letters")
		if page := b.text(); !strings.Contains(page, "418 after 1 attempts") {
			return fmt.Errorf("the page is:\n%s", page)
		}
		return nil
	})
	b.inspect(t, "dead letters")
	b.follow(t, "3001")
	b.reads(t, "com.example.broken", "Trigger broken", "{}", "last code 418")
	b.inspect(t, "dead letter")
	b.follow(t, "What happened to this event")
	b.reads(t, "dead letter store attempt 1")
	b.follow(t, "Dead letters")
	b.follow(t, "3001")
	b.follow(t, "Delete")
	b.reads(t, "There are no dead letters")

	for _, unknown := range []struct{ field, value, answer string }{
		{"id", "none", "There is no record of this event"}, {"traceid", "x", "parameter 'traceid' must be 32"},
	} {
		b.follow(t, "Find an event")
		b.do(t, "ask for what does not exist", chromedp.WaitVisible(chromedp.CSS("#id[value='']")), chromedp.SendKeys(chromedp.ID(unknown.field), unknown.value+kb.Enter))
		b.reads(t, unknown.answer)
	}
}
