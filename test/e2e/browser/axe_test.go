package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// violation is what axe-core finds wrong with a page.
type violation struct {
	ID    string `json:"id"`
	Help  string `json:"help"`
	Nodes []struct {
		HTML    string `json:"html"`
		Summary string `json:"failureSummary"`
	} `json:"nodes"`
}

// examine has axe-core look for barriers on the page that a tab shows.
func (t *tab) examine(axe string) ([]violation, error) {
	ctx, cancel := context.WithTimeout(t, answerTime)
	defer cancel()
	var found string
	// The page's policy allows no script but its own; the debugger's is not the page's.
	err := chromedp.Run(ctx,
		chromedp.Evaluate(axe+"; true", nil),
		chromedp.Evaluate("axe.run({resultTypes: ['violations']}).then(r => JSON.stringify(r.violations))", &found,
			func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	if err != nil {
		return nil, fmt.Errorf("failed to run axe-core: %w", err)
	}
	var all []violation
	return all, json.Unmarshal([]byte(found), &all)
}

// live are the parts of a page that have it change: it loads itself again, or has a script do so.
var live = regexp.MustCompile(`<meta http-equiv="refresh"[^>]*>|<script[^>]*></script>|</?noscript>`)

// hold has a tab without script show what it shows, by a document that stays, and allows it script: axe-core waits.
func (t *tab) hold() error {
	ctx, cancel := context.WithTimeout(t, answerTime)
	defer cancel()
	var html string
	return chromedp.Run(ctx, chromedp.OuterHTML("html", &html), chromedp.ActionFunc(func(ctx context.Context) error {
		tree, err := page.GetFrameTree().Do(ctx)
		if err != nil {
			return fmt.Errorf("failed to find the page's frame: %w", err)
		}
		if err := emulation.SetScriptExecutionDisabled(false).Do(ctx); err != nil {
			return fmt.Errorf("failed to allow script: %w", err)
		}
		return page.SetDocumentContent(tree.Frame.ID, "<!doctype html>"+live.ReplaceAllString(html, "")).Do(ctx)
	}))
}

// TestNoBarriers: axe-core finds nothing on any page, as it is drawn for any screen, with script and without.
func TestNoBarriers(t *testing.T) {
	s, chromium, repo := start(t)
	axe, err := os.ReadFile(filepath.Join(repo, "build", "axe", "node_modules", "axe-core", "axe.min.js"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("needs axe-core: make deps")
	}
	if err != nil {
		t.Fatal(err)
	}
	paths := map[int]map[string]string{ // by machines, what to wait for by path
		0: {"/boots": "#parts p"},
		30: {
			"/boots": rows, "/boots?state=stuck": rows, "/boots?q=nothing": "#parts p", "/boots/" + stuckID: ".cause",
			"/boots/52:54:00:5e:00:01": ".fall", "/boots/52:54:00:5e:00:0a": ".fall", "/boots/52:54:00:5e:99:99": "body",
		},
	}
	without := views[0]
	without.name, without.script = "noscript", false
	for n, pages := range paths {
		if err := s.machines(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		for _, v := range []view{views[0], views[1], views[2], without} {
			tab, shut := open(t, chromium, v)
			for path, wait := range pages {
				err := tab.load(s.base+path, wait)
				if err == nil && !v.script {
					err = tab.hold()
				}
				var found []violation
				if err == nil {
					found, err = tab.examine(string(axe))
				}
				if err == nil && !v.script {
					err = chromedp.Run(tab, emulation.SetScriptExecutionDisabled(true))
				}
				if err != nil {
					t.Fatalf("%s %s: %v", v.name, path, err)
				}
				for _, each := range found {
					var where []string
					for _, node := range each.Nodes {
						where = append(where, node.HTML+": "+strings.Join(strings.Fields(node.Summary), " "))
					}
					t.Errorf("%s %s: %s: %s: %q", v.name, path, each.ID, each.Help, where[:min(3, len(where))])
				}
			}
			shut()
		}
	}
}
