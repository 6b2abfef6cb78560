package browser

import (
	"context"
	"flag"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/tinkerbell/stack/test/e2e/program"
)

var update = flag.Bool("update", false, "take the screenshot of docs/boots.md anew")

// start starts the site and a browser until the test ends.
func start(t *testing.T) (*site, context.Context, string) {
	t.Helper()
	binary, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs Debian's package chromium")
	}
	repo, err := program.Repo()
	if err != nil {
		t.Fatal(err)
	}
	s, err := openSite(t.Context(), repo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(binary), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(profile(t)), chromedp.WSURLReadTimeout(90*time.Second), chromedp.Flag("hide-scrollbars", true))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Run(ctx); err != nil {
		t.Fatalf("failed to start the browser: %v", err)
	}
	return s, ctx, repo
}

// profile is a directory for the browser, whose processes write to it for a moment after the first of them has ended.
func profile(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "browser-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			if err := os.RemoveAll(dir); err == nil {
				return
			} else if time.Now().After(end) {
				t.Error(err)
				return
			}
		}
	})
	return dir
}

func open(t *testing.T, browser context.Context, v view) (*tab, func()) {
	t.Helper()
	tab, cancel, err := openTab(browser, v)
	if err != nil {
		t.Fatal(err)
	}
	return tab, cancel
}

const rows, stuckID, bootID = "#rows tr", "52:54:00:5e:00:00", "52:54:00:5e:00:08"

var views = []view{
	{name: "wide", width: 1440, height: 860, scale: 1, script: true},
	{name: "wide-dark", width: 1440, height: 860, scale: 1, dark: true, script: true},
	{name: "phone", width: 390, height: 844, scale: 2, phone: true, script: true},
	{name: "phone-dark", width: 390, height: 844, scale: 2, phone: true, dark: true, script: true},
}

// Screenshots of every kind land in build/boots, for people to look at.
func TestScreenshots(t *testing.T) {
	s, browser, repo := start(t)
	for _, n := range []int{0, 1, 30, 2000} {
		if err := s.machines(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		for _, v := range views {
			tab, shut := open(t, browser, v)
			take := func(name, path, wait string) {
				t.Helper()
				if err := tab.load(s.base+path, wait); err != nil {
					t.Fatalf("%s: %v", path, err)
				}
				tab.until(t, "the stream", isLive)
				name = fmt.Sprintf("%s-%d-%s.png", name, n, v.name)
				if err := tab.shoot(filepath.Join(repo, "build", "boots", name)); err != nil {
					t.Fatal(err)
				}
			}
			take("list", "/boots", "#parts p")
			if n == 30 {
				take("stuck", "/boots/"+stuckID, ".cause")
				take("booting", "/boots/52:54:00:5e:00:01", ".fall")
				take("booted", "/boots/52:54:00:5e:00:0a", ".fall")
			}
			if complaints := tab.complaints(); len(complaints) > 0 {
				t.Errorf("%s: %q", v.name, complaints)
			}
			shut()
		}
	}
}

// The screenshot of docs/boots.md is of this page, and small. "go test ./browser -run Docs -update" takes it anew.
func TestDocsScreenshot(t *testing.T) {
	s, browser, repo := start(t)
	if err := s.machines(t.Context(), 30); err != nil {
		t.Fatal(err)
	}
	tab, shut := open(t, browser, view{name: "docs", width: 1160, height: 560, scale: 1, script: true})
	defer shut()
	if err := tab.load(s.base+"/boots/"+stuckID, ".cause"); err != nil {
		t.Fatal(err)
	}
	tab.until(t, "the stream", isLive)
	path := filepath.Join(repo, "docs", "boots.png")
	if !*update {
		path = filepath.Join(repo, "build", "boots", "docs.png")
	}
	if err := tab.shoot(path); err != nil {
		t.Fatal(err)
	}
	for _, each := range []string{path, filepath.Join(repo, "docs", "boots.png")} {
		file, err := os.Open(each)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		shot, err := png.DecodeConfig(file)
		if err != nil || shot.Width != 1160 || shot.Height != 560 {
			t.Errorf("%s: %+v, %v", each, shot, err)
		}
		if info, err := file.Stat(); err != nil || info.Size() > 150<<10 {
			t.Errorf("%s is too large: %v, %v", each, info.Size(), err)
		}
	}
}
