// Package browser shows the console in a real browser, and does in it what a person does.
package browser

import (
	"context"
	"encoding/json"
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

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// interrupted is on the page that Chromium shows instead of one whose connection it was opening when an address of the machine
// changed, as when a Pod starts beside the test. The request was not sent.
const interrupted = "ERR_NETWORK_CHANGED"

// Browser is a tab of a real browser with the console.
type Browser struct {
	context.Context
	origin string

	mu sync.Mutex
	// requested are the URLs that the browser requested, complaints are what it reported about the pages.
	requested, complaints []string
}

// Open starts the console with the plugin, and opens the address that it prints.
func Open(t *testing.T, p *harness.Plugin) *Browser {
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
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(harness.Patience))
	allocated, end := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(end)
	tab, closeTab := chromedp.NewContext(allocated)
	t.Cleanup(closeTab)
	b := &Browser{Context: tab, origin: address.Scheme + "://" + address.Host}
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
	b.Do(t, "open the browser", requests, chromedp.EmulateViewport(1280, 900))
	ctx, cancel := context.WithTimeout(b.Context, harness.Patience)
	defer cancel()
	err = chromedp.Do(ctx, chromedp.Navigate(address.String()))
	if err == nil || strings.Contains(err.Error(), interrupted) {
		err = loaded(ctx)
	}
	if err != nil {
		t.Fatalf("open the address: %v\nthe page is:\n%s", err, b.Text())
	}
	return b
}

// Do does what a person does. Elements are waited for.
func (b *Browser) Do(t *testing.T, what string, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, harness.Patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatalf("%s: %v\nthe page is:\n%s", what, err, b.Text())
	}
}

// Get returns what an action finds.
func Get[T any](t *testing.T, b *Browser, action chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, harness.Patience)
	defer cancel()
	found, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Text returns what the page shows.
func (b *Browser) Text() string {
	ctx, cancel := context.WithTimeout(b.Context, 10*time.Second)
	defer cancel()
	text, err := text(ctx)
	if err != nil {
		return err.Error()
	}
	return text
}

// text returns what the page shows. It reloads a page whose loading was interrupted.
func text(ctx context.Context) (string, error) {
	shown := chromedp.Text(chromedp.CSS("body"))
	text, err := chromedp.Run(ctx, shown)
	if err != nil || !strings.Contains(text, interrupted) {
		return text, err
	}
	if err := chromedp.Do(ctx, chromedp.Reload()); err != nil {
		return "", err
	}
	return chromedp.Run(ctx, shown)
}

// loaded waits until the page shows something, also if its loading was interrupted.
func loaded(ctx context.Context) error {
	return harness.Poll(ctx, func() error {
		_, err := text(ctx)
		return err
	})
}

// Reads waits until the page shows texts.
func (b *Browser) Reads(t *testing.T, texts ...string) {
	t.Helper()
	harness.Eventually(t, "the page shows "+strings.Join(texts, ", "), func() error {
		page := b.Text()
		for _, text := range texts {
			if !strings.Contains(page, text) {
				return fmt.Errorf("there is no %q on the page:\n%s", text, page)
			}
		}
		return nil
	})
}

// Follow clicks a link or button by its text, and waits until the browser leaves the page.
func (b *Browser) Follow(t *testing.T, text string) {
	t.Helper()
	b.Click(t, fmt.Sprintf(`//*[self::a or self::button][contains(normalize-space(.), %q)]`, text))
}

// Click waits for the first element of an XPath expression, clicks it, and waits until the browser leaves the page: otherwise the next step
// may still find the old page. It looks for the element again if an update of the page replaces it before the click.
func (b *Browser) Click(t *testing.T, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, harness.Patience)
	defer cancel()
	mark := chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := chromedp.Evaluate[bool](`document.body.dataset.left = 'yes', true`)(ctx, target)
		return err
	})
	err := harness.Poll(ctx, func() error { return chromedp.Do(ctx, mark, chromedp.Click(path)) })
	if err == nil {
		err = chromedp.Do(ctx, chromedp.WaitReady(chromedp.CSS("body:not([data-left])")))
	}
	if err == nil {
		err = loaded(ctx)
	}
	if err != nil {
		t.Fatalf("click %s: %v\nthe page is:\n%s", path, err, b.Text())
	}
}

// Inspect checks what holds on each page: screen readers know the name of each control, the content fits in the width, also of a phone, and
// nothing comes from elsewhere.
func (b *Browser) Inspect(t *testing.T, name string) {
	t.Helper()
	var nodes []*accessibility.Node
	b.Do(t, "read the accessibility tree", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
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
		b.Do(t, "resize", chromedp.EmulateViewport(width, 900))
		overflow := Get(t, b, chromedp.Evaluate[int64]("document.documentElement.scrollWidth - window.innerWidth"))
		if overflow > 0 {
			t.Errorf("%s: at a width of %d px the page is %d px wider", name, width, overflow)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, address := range b.requested {
		// Chromium draws fields for dates with images of its own, whose URLs hold them.
		if !strings.HasPrefix(address, b.origin+"/") && !strings.HasPrefix(address, "data:") {
			t.Errorf("%s: the browser requested %s", name, address)
		}
	}
	if len(b.complaints) > 0 {
		t.Errorf("%s: the browser reported %q", name, b.complaints)
	}
}

// Screenshot writes the picture of the README.
func (b *Browser) Screenshot(t *testing.T) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	image := Get(t, b, chromedp.CaptureScreenshot())
	if err := os.WriteFile(filepath.Join(root, "docs", "images", "console.png"), image, 0o644); err != nil {
		t.Fatal(err)
	}
}
