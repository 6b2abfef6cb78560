// Package browser looks at the boots page with a real browser.
package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// site is the page of a made-up site: the test binary of pkg/boot/page serves it.
type site struct {
	*process.Process
	base string
}

// openSite builds and starts the site. dir is the repository.
func openSite(ctx context.Context, dir string) (*site, error) {
	binary := filepath.Join(dir, "build", "bin", "boots-page.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-o", binary, "./pkg/boot/page")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("failed to build the page: %w: %s", err, out)
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), "BOOTS_PAGE_SERVE=127.0.0.1:0")
	cmd.Stderr = os.Stderr
	p, err := process.Start(ctx, cmd, process.Options{})
	if err != nil {
		return nil, err
	}
	s := &site{Process: p}
	// The first line is its address.
	err = progress.Until(ctx, progress.Patience{Quiet: process.Quiet}, 10*time.Millisecond, func(context.Context) error {
		address, _, whole := strings.Cut(p.Said(), "\n")
		if !whole {
			return errors.New("the page has not said its address")
		}
		s.base = strings.TrimSuffix(strings.TrimSpace(address), "/boots")
		return nil
	})
	if err != nil {
		p.Kill()
		return nil, fmt.Errorf("failed to start the page: %w", err)
	}
	return s, nil
}

// machines makes the site one of n machines.
func (s *site) machines(ctx context.Context, n int) error {
	return s.put(ctx, fmt.Sprintf("/test/site?machines=%d", n), nil)
}

// machine is a machine as the API tells it.
type machine map[string]any

func (s *site) machine(ctx context.Context, id string) (machine, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/api/v1/boots/"+id, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	var m machine
	if err := json.NewDecoder(response.Body).Decode(&m); err != nil {
		return nil, err
	}
	return m, nil
}

// boot is the machine's newest boot.
func (m machine) boot() map[string]any { return m["boots"].([]any)[0].(map[string]any) }

// step adds a step to the newest boot, which goes on now.
func (m machine) step(name, text string) {
	now := time.Now().UTC().Format(time.RFC3339Nano)
	b := m.boot()
	b["steps"] = append(b["steps"].([]any), map[string]any{
		"step": name, "result": "going", "begin": now, "end": now, "text": text, "answers": []any{map[string]any{
			"begin": now, "end": now, "kind": "GET", "text": text, "result": "200", "ok": true, "count": 1,
			"from": "10.96.14.20:7171",
		}},
	})
	b["at"], b["end"], b["state"] = name, now, "booting"
	delete(b, "cause")
	delete(b, "next")
}

func (s *site) put(ctx context.Context, path string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, s.base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(response.Body)
		return fmt.Errorf("PUT %s: %s: %s", path, response.Status, said)
	}
	return nil
}

// view is how a page is looked at.
type view struct {
	name          string
	width, height int64
	scale         float64
	phone, dark   bool
	script        bool
}

// answerTime is how long the browser may take for one thing that it is asked for. A test asks for many, and has no time
// of its own.
const answerTime = 90 * time.Second

// tab is a tab of the browser, and what it complained of.
type tab struct {
	context.Context
	mu        sync.Mutex
	complains []string
}

// openTab opens a tab that looks at pages by a view.
func openTab(browser context.Context, v view) (*tab, context.CancelFunc, error) {
	ctx, cancel := chromedp.NewContext(browser)
	t := &tab{Context: ctx}
	complain := func(format string, args ...any) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.complains = append(t.complains, fmt.Sprintf(format, args...))
	}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			complain("exception: %s", e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			complain("console: %v", e.Args)
		case *log.EventEntryAdded:
			complain("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	})
	colours := "light"
	if v.dark {
		colours = "dark"
	}
	err := chromedp.Run(ctx,
		log.Enable(),
		page.BringToFront(), // a page that nobody sees asks for no events
		emulation.SetDeviceMetricsOverride(v.width, v.height, v.scale, v.phone),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: colours},
		}),
		emulation.SetScriptExecutionDisabled(!v.script),
	)
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("failed to open a tab: %w", err)
	}
	return t, cancel, nil
}

// complaints are what the browser found wrong with the pages, such as what their policy forbids.
func (t *tab) complaints() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.complains...)
}

// load opens a page without waiting for its stream of events to end.
func (t *tab) load(url string, wait string) error {
	ctx, cancel := context.WithTimeout(t, answerTime)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Navigate(url), chromedp.WaitVisible(wait, chromedp.ByQuery))
}

// shoot writes a screenshot of what is seen.
func (t *tab) shoot(path string) error {
	var picture []byte
	ctx, cancel := context.WithTimeout(t, answerTime)
	defer cancel()
	err := chromedp.Run(ctx, chromedp.ActionFunc(func(ctx context.Context) error {
		shot, err := page.CaptureScreenshot().WithFormat(page.CaptureScreenshotFormatPng).Do(ctx)
		picture = shot
		return err
	}))
	if err != nil {
		return fmt.Errorf("failed to take a screenshot: %w", err)
	}
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, picture, 0o644))
}
