package plugin

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/knative-apiserver/knative-apiserver/test/browser"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

var screenshot = flag.Bool("screenshot", false, "Write the screenshot of the README to docs/images.")

// TestConsole does in a browser what a person does with the console.
func TestConsole(t *testing.T) {
	t.Parallel()
	const namespace = "console"
	shared.shop(t, namespace)
	p := harness.NewPlugin(t, shared.kubeconfig(t, namespace), namespace)
	b := browser.Open(t, p)
	b.Reads(t, "Event flow", "Broker orders: ready", "Trigger failing", "Channel mails: ready", "Live")
	b.Inspect(t, "flow")
	// The second sample of the metrics comes while the page is open.
	b.Reads(t, "Trigger hello [type=com.example.order]: ready · no events", "Service hello: ready · 0 requests/s")
	// A change is shown without a reload.
	p.Must(t, "", "delete", "trigger", "refunds")
	harness.Eventually(t, "the deleted Trigger vanishes", func() error {
		if page := b.Text(); strings.Contains(page, "refunds") {
			return fmt.Errorf("the page is:\n%s", page)
		}
		return nil
	})

	b.Follow(t, "Services")
	b.Reads(t, "hello-00001", "100 %", "Ready")
	b.Inspect(t, "services")
	clickDuringUpdate(t, b, p)
	// The Revision scales to zero about a minute after its last request.
	shared.send(t, namespace, "1003", shopType)
	b.Reads(t, "Decisions", "Target for one instance", "of 1 instances")
	b.Inspect(t, "scale")
	b.Follow(t, "Services")
	b.Click(t, `//h2/a[.="hello"]`)
	b.Reads(t, "Logs", "1001")
	b.Inspect(t, "service")

	// By keyboard only.
	b.Follow(t, "Find an event")
	b.Do(t, "ask for an event", chromedp.Focus(chromedp.ID("id")), chromedp.SendKeys(chromedp.ID("id"), "1001"+kb.Enter))
	b.Reads(t, "accepted by Broker orders", "Trigger hello: Delivered", "Trigger failing: DeadLettered", "Subscription archive: Delivered")
	b.Inspect(t, "events")
	if *screenshot {
		b.Screenshot(t)
	}
	b.Follow(t, "Dead letters")
	b.Reads(t, "There are no dead letters")
	shared.breakTrigger(t, namespace)
	awaitDeadLetter(t, b)
	b.Inspect(t, "dead letters")
	b.Follow(t, "3001")
	b.Reads(t, "com.example.broken", "Trigger broken", "{}", "last code 418")
	b.Inspect(t, "dead letter")
	b.Follow(t, "What happened to this event")
	b.Reads(t, "dead letter store attempt 1")
	redriveAndReplay(t, b)
	b.Follow(t, "3001")
	b.Follow(t, "Delete")
	b.Reads(t, "There are no dead letters")

	for _, unknown := range []struct{ field, value, answer string }{
		{"id", "none", "There is no record of this event"}, {"traceid", "x", "parameter 'traceid' must be 32"},
	} {
		b.Follow(t, "Find an event")
		b.Do(t, "ask for what does not exist", chromedp.WaitVisible(chromedp.CSS("#id[value='']")), chromedp.SendKeys(chromedp.ID(unknown.field), unknown.value+kb.Enter))
		b.Reads(t, unknown.answer)
	}
}

// clickDuringUpdate follows the link to a Revision, and the content changes while the button is pressed: that does not lose the click.
func clickDuringUpdate(t *testing.T, b *browser.Browser, p *harness.Plugin) {
	t.Helper()
	link := chromedp.Evaluate[struct{ X, Y float64 }](`(() => {
		const box = [...document.links].find((a) => a.textContent.trim() === 'hello-00001').getBoundingClientRect();
		return {X: box.x + box.width / 2, Y: box.y + box.height / 2};
	})()`)
	at := browser.Get(t, b, link)
	left := func(p *input.DispatchMouseEventParams) { p.Button, p.ClickCount = input.MouseButtonLeft, 1 }
	b.Do(t, "press", chromedp.MouseEvent(chromedp.MouseMoved, at.X, at.Y), chromedp.MouseEvent(chromedp.MousePressed, at.X, at.Y, left))
	// The page gets the same updates.
	b.Do(t, "watch the updates", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := chromedp.Evaluate[bool](`new EventSource(document.querySelector('main').dataset.live)
			.addEventListener('content', (event) => { if (event.data.includes('pressed')) document.body.dataset.changed = 'yes'; }), true`)(ctx, target)
		return err
	}))
	p.Must(t, "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: pressed}\nspec: {template: {spec: {containers: [{image: none}]}}}\n", "create", "-f", "-")
	b.Do(t, "wait for the update", chromedp.WaitReady(chromedp.CSS("body[data-changed]")))
	if page := b.Text(); strings.Contains(page, "pressed") {
		t.Errorf("the content is replaced while the button is pressed:\n%s", page)
	}
	b.Do(t, "release", chromedp.MouseEvent(chromedp.MouseReleased, at.X, at.Y, left))
	b.Reads(t, "Decisions")
	p.Must(t, "", "delete", "ksvc", "pressed")
}

// awaitDeadLetter opens the page of dead letters until it has the one of the Trigger broken.
func awaitDeadLetter(t *testing.T, b *browser.Browser) {
	t.Helper()
	harness.Eventually(t, "the dead letter is shown", func() error {
		b.Follow(t, "Dead letters")
		if page := b.Text(); !strings.Contains(page, "418 after 1 attempts") {
			return fmt.Errorf("the page is:\n%s", page)
		}
		return nil
	})
}

// redriveAndReplay has the dead letter and archived events delivered again. The dead letter, whose subscriber still fails, is there again afterwards.
func redriveAndReplay(t *testing.T, b *browser.Browser) {
	t.Helper()
	awaitDeadLetter(t, b)
	b.Follow(t, "3001")
	b.Follow(t, "Deliver again")
	b.Reads(t, "Redrives and replays", "dead letters of Trigger broken", "Succeeded", "1 of 1")
	b.Inspect(t, "redrives")
	awaitDeadLetter(t, b)
	b.Do(t, "select no dead letters", chromedp.SendKeys(chromedp.ID("type"), "none"+kb.Enter))
	b.Reads(t, "There are no dead letters")
	b.Follow(t, "Dead letters")
	b.Do(t, "enter a bad rate", chromedp.SendKeys(chromedp.ID("rate"), "many"+kb.Enter))
	b.Reads(t, "Events per second must be a number of at least 1, not 'many'")
	b.Follow(t, "Dead letters")
	b.Do(t, "enter a bad destination", chromedp.SendKeys(chromedp.ID("destination"), "nowhere"+kb.Enter))
	b.Reads(t, "The destination must be a URL, or service/NAME, broker/NAME or channel/NAME, not 'nowhere'")
	b.Follow(t, "Dead letters")
	b.Follow(t, "Deliver all again")
	b.Reads(t, "dead letters of Trigger broken", "Succeeded")

	b.Follow(t, "Replay archived events")
	b.Reads(t, "Accepted from")
	b.Inspect(t, "replay")
	b.Do(t, "ask for a replay", chromedp.SendKeys(chromedp.ID("trigger"), "hello"), chromedp.SendKeys(chromedp.ID("type"), shopType), chromedp.SendKeys(chromedp.ID("rate"), "100"+kb.Enter))
	b.Reads(t, "archive of Broker orders, for Trigger hello", "Succeeded")
	b.Click(t, `//button[@aria-label="Delete trigger-hello"]`)
	harness.Eventually(t, "the deleted replay vanishes", func() error {
		if page := b.Text(); strings.Contains(page, "for Trigger hello") || !strings.Contains(page, "Trigger broken") {
			return fmt.Errorf("the page is:\n%s", page)
		}
		return nil
	})
	awaitDeadLetter(t, b)
}
