package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/pkg/artifacts"
)

func TestMain(m *testing.M) {
	if volume := os.Getenv("FETCH_TEST_VOLUME"); volume != "" {
		fetchUntilKilled(volume, os.Getenv("FETCH_TEST_URL"))
		return
	}
	goleak.VerifyTestMain(m)
}

func configFor(volume string, sets ...Set) Config {
	return Config{
		Volume: volume, Sets: sets, Attempts: 3, StallTimeout: setting.Duration(300 * time.Millisecond),
		RetryFirst: setting.Duration(time.Millisecond), RetryMost: setting.Duration(5 * time.Millisecond),
	}
}

func newFetcher(t testing.TB, c Config) *Fetcher {
	t.Helper()
	f, err := New(c, Options{Metrics: NewMetrics(prometheus.NewPedanticRegistry())})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// served is what is served now, by name.
func served(t testing.TB, f *Fetcher) map[string]string {
	t.Helper()
	got := map[string]string{}
	root := f.Directory()
	target, err := filepath.EvalSymlinks(root)
	if errors.Is(err, fs.ErrNotExist) {
		return got
	}
	err = filepath.WalkDir(target, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == artifacts.ManifestName {
			return err
		}
		text, err := os.ReadFile(name)
		relative, _ := filepath.Rel(target, name)
		got[relative] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// hook is a release as HookOS publishes it.
func hook(t testing.TB, version string) map[string][]byte {
	files := map[string][]byte{}
	for _, flavour := range []string{"", "latest-lts-"} {
		for _, arch := range []string{"x86_64", "aarch64"} {
			files["hook_"+flavour+arch+".tar.gz"] = archive(t,
				entry{name: "./", kind: '5'},
				entry{name: "./vmlinuz-" + flavour + arch, body: []byte("kernel " + flavour + arch + version)},
				entry{name: "./initramfs-" + flavour + arch, body: []byte("initramfs " + flavour + arch + version)})
			files["hook-"+flavour+arch+"-efi-initrd.iso"] = []byte("iso " + flavour + arch + version)
		}
	}
	files["dtbs-latest-lts-aarch64.tar.gz"] = archive(t, entry{name: "a.dtb", body: []byte("tree")})
	return files
}

func TestHookReleaseIsChosenAsTheIncumbentDid(t *testing.T) {
	r := newRelease(t)
	release := hook(t, "")
	r.set(release)
	tests := map[string]struct {
		set  Set
		want map[string]string
	}{
		"one machine": {
			Set{Arch: "x86_64", Extension: "tar.gz"},
			map[string]string{
				"vmlinuz-latest-lts-x86_64":   "kernel latest-lts-x86_64",
				"initramfs-latest-lts-x86_64": "initramfs latest-lts-x86_64",
				"vmlinuz-x86_64":              "kernel latest-lts-x86_64",
				"initramfs-x86_64":            "initramfs latest-lts-x86_64",
			},
		},
		"old kernel, iso": {
			Set{Arch: "aarch64", Extension: "iso", KernelVersion: "5.10"},
			map[string]string{"hook-aarch64-efi-initrd.iso": "iso aarch64"},
		},
		"defaults": {
			Set{Path: "hook"},
			map[string]string{
				"hook/vmlinuz-latest-lts-x86_64":      "kernel latest-lts-x86_64",
				"hook/initramfs-latest-lts-x86_64":    "initramfs latest-lts-x86_64",
				"hook/vmlinuz-latest-lts-aarch64":     "kernel latest-lts-aarch64",
				"hook/initramfs-latest-lts-aarch64":   "initramfs latest-lts-aarch64",
				"hook/vmlinuz-x86_64":                 "kernel latest-lts-x86_64",
				"hook/initramfs-x86_64":               "initramfs latest-lts-x86_64",
				"hook/vmlinuz-aarch64":                "kernel latest-lts-aarch64",
				"hook/initramfs-aarch64":              "initramfs latest-lts-aarch64",
				"hook/dtbs-latest-lts-aarch64.tar.gz": string(release["dtbs-latest-lts-aarch64.tar.gz"]),
			},
		},
		"by name": {
			Set{Names: []string{"hook-x86*.iso"}},
			map[string]string{"hook-x86_64-efi-initrd.iso": "iso x86_64"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.set.Name, test.set.URL = "hook", r.URL
			f := newFetcher(t, configFor(t.TempDir(), test.set))
			if err := f.Once(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, served(t, f)); diff != "" {
				t.Errorf("served differs (-want +got):\n%s", diff)
			}
			if err := f.Ready(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOnlyWhatIsMissingIsFetchedAgain(t *testing.T) {
	r := newRelease(t)
	release := map[string][]byte{
		"a-latest-lts-x86_64.iso": noise(1, 1000), "b-latest-lts-x86_64.iso": noise(2, 1000),
		"c-latest-lts-x86_64.tar.gz": archive(t, reg("k", "kernel"), reg("i", "init")),
	}
	r.set(release)
	volume := t.TempDir()
	set := Set{Name: "hook", URL: r.URL, Extension: both}
	f := newFetcher(t, configFor(volume, set))
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, _ := os.Readlink(f.Directory())
	expect := func(step string, want map[string]int) {
		t.Helper()
		got := map[string]int{}
		for name := range r.files {
			if n := r.count(name); n > 0 && name != "checksum.txt" {
				got[name] = n
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: requests differ (-want +got):\n%s", step, diff)
		}
		r.reset()
	}
	expect("first", map[string]int{
		"a-latest-lts-x86_64.iso": 1, "b-latest-lts-x86_64.iso": 1, "c-latest-lts-x86_64.tar.gz": 1,
	})
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.Readlink(f.Directory()); again != first {
		t.Errorf("switched without a reason, from %s to %s", first, again)
	}
	expect("nothing new", map[string]int{})

	// One file of the archive is damaged without its size having changed, and one is gone.
	if err := os.WriteFile(filepath.Join(f.Directory(), "k"), []byte("kernem"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(f.Directory(), "b-latest-lts-x86_64.iso")); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"a-latest-lts-x86_64.iso": string(noise(1, 1000)), "b-latest-lts-x86_64.iso": string(noise(2, 1000)),
		"k": "kernel", "i": "init",
	}
	// The release is away at first: what is wrong goes at once, what is right stays.
	r.fail("checksum.txt", gone)
	if err := f.Once(t.Context()); stateOf(err) != StateUnavailable {
		t.Errorf("got %v", err)
	}
	if got := served(t, f); got["k"] != "" || got["i"] != "init" {
		t.Errorf("with the release away: got %q", got)
	}
	if err := f.Ready(); err != nil {
		t.Logf("not ready while a file is missing: %v", err)
	}
	r.reset()
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, served(t, f)); diff != "" {
		t.Errorf("healed differs (-want +got):\n%s", diff)
	}
	expect("healing", map[string]int{"b-latest-lts-x86_64.iso": 1, "c-latest-lts-x86_64.tar.gz": 1})

	// A new release changes one artifact and drops another.
	release["a-latest-lts-x86_64.iso"] = noise(3, 1000)
	delete(release, "b-latest-lts-x86_64.iso")
	r.set(release)
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	want["a-latest-lts-x86_64.iso"] = string(noise(3, 1000))
	delete(want, "b-latest-lts-x86_64.iso")
	if diff := cmp.Diff(want, served(t, f)); diff != "" {
		t.Errorf("new release differs (-want +got):\n%s", diff)
	}
	expect("new release", map[string]int{"a-latest-lts-x86_64.iso": 1})
	generations, err := os.ReadDir(filepath.Join(volume, nameGenerations))
	if err != nil || len(generations) != 2 {
		t.Errorf("got %d generations, want the current and the previous", len(generations))
	}
	if partial, _ := os.ReadDir(filepath.Join(volume, namePartial)); len(partial) != 0 {
		t.Errorf("%d partial files are left", len(partial))
	}
	// A manifest that is damaged counts as nothing there.
	if err := os.WriteFile(filepath.Join(f.Directory(), artifacts.ManifestName), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, served(t, f)); diff != "" {
		t.Errorf("after a damaged manifest (-want +got):\n%s", diff)
	}
}

func TestFaultyServers(t *testing.T) {
	const name = "big-latest-lts-x86_64.iso"
	body := noise(1, 300<<10)
	tests := map[string]struct {
		faults   []fault
		list     []fault
		state    State
		ranges   int // requests with a Range
		requests int
	}{
		"fine":                           {requests: 1},
		"breaks off, resumed":            {faults: []fault{breakOff}, requests: 2, ranges: 1},
		"breaks off often":               {faults: []fault{breakOff, breakOff, breakOff}, requests: 4, ranges: 3},
		"stalls, resumed":                {faults: []fault{stall}, requests: 2, ranges: 1},
		"breaks off, then ignores Range": {faults: []fault{breakOff, noRange}, requests: 2, ranges: 1},
		"breaks off, then another range": {faults: []fault{breakOff, wrongRange}, requests: 3, ranges: 1},
		"claims more than there is":      {faults: []fault{longer}, requests: 1},
		"claims less than there is":      {faults: []fault{shorter}, requests: 2},
		"claims less, always":            {faults: []fault{shorter, shorter}, state: StateInvalid, requests: 2},
		"wrong bytes, once":              {faults: []fault{wrongBytes}, requests: 2},
		"wrong bytes, always":            {faults: []fault{wrongBytes, wrongBytes}, state: StateInvalid, requests: 2},
		"breaks off, then others' bytes": {faults: []fault{breakOff, changed}, requests: 3, ranges: 1},
		"busy, then fine":                {faults: []fault{busy, refuse}, requests: 3},
		"busy for ever":                  {faults: slices.Repeat([]fault{busy}, 5), state: StateUnavailable, requests: 4},
		"gone":                           {faults: []fault{gone}, state: StateUnavailable, requests: 1},
		"list is gone":                   {list: []fault{gone}, state: StateUnavailable},
		"list breaks off, then is fine":  {list: []fault{breakOff, busy}, requests: 1},
		"list stalls for ever":           {list: []fault{stall, stall, stall, stall}, state: StateUnavailable},
		"list claims less than there is": {list: []fault{shorter}, state: StateInvalid},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			r := newRelease(t)
			r.set(map[string][]byte{name: body})
			r.fail(name, test.faults...)
			r.fail("checksum.txt", test.list...)
			registry := prometheus.NewPedanticRegistry()
			c := configFor(t.TempDir(), Set{Name: "hook", URL: r.URL, Extension: both})
			if !slices.Contains(append(test.faults, test.list...), stall) {
				c.StallTimeout = setting.Duration(time.Hour) // a busy machine is no fault of the server
			}
			f, err := New(c, Options{Metrics: NewMetrics(registry)})
			if err != nil {
				t.Fatal(err)
			}
			want := test.state
			if want == StatePending {
				want = StateCurrent
			}
			err = f.Once(t.Context())
			if stateOf(err) != want {
				t.Errorf("got %v (%v), want %v", stateOf(err), err, want)
			}
			content := ""
			if want == StateCurrent {
				content = string(body)
			}
			if got := served(t, f)[name]; got != content {
				t.Errorf("%d bytes are served, want %d, the right ones", len(got), len(content))
			}
			if (f.Ready() == nil) != (want == StateCurrent) {
				t.Errorf("Ready() = %v", f.Ready())
			}
			if r.count(name) != test.requests || r.ranges[name] != test.ranges {
				t.Errorf("got %d requests, %d with a range; want %d, %d",
					r.count(name), r.ranges[name], test.requests, test.ranges)
			}
			text := `# HELP stack_proxy_artifacts_checks_total Checks of a set, by the state they ended in.
# TYPE stack_proxy_artifacts_checks_total counter
stack_proxy_artifacts_checks_total{set="hook",state="` + want.String() + `"} 1
`
			if err := testutil.GatherAndCompare(registry, strings.NewReader(text),
				"stack_proxy_artifacts_checks_total"); err != nil {
				t.Error(err)
			}
			if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
				t.Errorf("%v %v", problems, err)
			}
		})
	}
}

func TestSetsFailAlone(t *testing.T) {
	good, bad := newRelease(t), newRelease(t)
	good.set(map[string][]byte{"g-latest-lts-x86_64.iso": []byte("g1")})
	bad.set(map[string][]byte{"b-latest-lts-x86_64.iso": []byte("b1")})
	f := newFetcher(t, configFor(t.TempDir(), Set{Name: "good", URL: good.URL, Extension: both}, Set{Name: "bad", URL: bad.URL, Extension: both}))
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	good.set(map[string][]byte{"g-latest-lts-x86_64.iso": []byte("g2")})
	bad.set(map[string][]byte{"b-latest-lts-x86_64.iso": []byte("b2")})
	bad.fail("b-latest-lts-x86_64.iso", wrongBytes, wrongBytes)
	err := f.Once(t.Context())
	if stateOf(err) != StateInvalid || !strings.Contains(err.Error(), "set bad: ") ||
		strings.Contains(err.Error(), "set good: ") {
		t.Errorf("got %v", err)
	}
	want := map[string]string{"g-latest-lts-x86_64.iso": "g2", "b-latest-lts-x86_64.iso": "b1"}
	if diff := cmp.Diff(want, served(t, f)); diff != "" {
		t.Errorf("served differs (-want +got):\n%s", diff)
	}
	if err := f.Ready(); err != nil {
		t.Errorf("an old set is a set: %v", err)
	}
	status := f.Status()
	if status.Sets[0].State != "current" || status.Sets[1].State != "invalid" || status.Sets[1].Error == "" {
		t.Errorf("got %+v", status)
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, nil)
	if !strings.Contains(w.Body.String(), `"state": "invalid"`) {
		t.Errorf("got %s", w.Body)
	}
}

func TestSetsDoNotShareNames(t *testing.T) {
	a, b := newRelease(t), newRelease(t)
	a.set(map[string][]byte{"x-latest-lts-x86_64.iso": []byte("a")})
	b.set(map[string][]byte{"x-latest-lts-x86_64.iso": []byte("b")})
	volume := t.TempDir()
	f := newFetcher(t, configFor(volume, Set{Name: "a", URL: a.URL, Extension: both}, Set{Name: "b", URL: b.URL, Extension: both}))
	if err := f.Once(t.Context()); !errors.Is(err, errConflict) {
		t.Errorf("got %v", err)
	}
	if got := served(t, f)["x-latest-lts-x86_64.iso"]; got != "a" {
		t.Errorf("got %q, want the first", got)
	}
	f = newFetcher(t, configFor(volume, Set{Name: "a", URL: a.URL, Extension: both}, Set{Name: "b", URL: b.URL, Path: "b", Extension: both}))
	if err := f.Once(t.Context()); err != nil {
		t.Error(err)
	}
	// A set that is configured no more goes.
	f = newFetcher(t, configFor(volume, Set{Name: "b", URL: b.URL, Path: "b", Extension: both}))
	if err := f.Once(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]string{"b/x-latest-lts-x86_64.iso": "b"}, served(t, f)); diff != "" {
		t.Errorf("served differs (-want +got):\n%s", diff)
	}
}

func TestFiles(t *testing.T) {
	r := newRelease(t)
	zipped := archive(t, entry{name: "in/side", body: []byte("inside")})
	r.set(map[string][]byte{"plain.img": []byte("plain"), "all.tgz": zipped})
	digest := func(b []byte) string {
		sum := sha256.Sum256(b)
		return "sha256:" + strings.ToUpper(hex.EncodeToString(sum[:]))
	}
	set := Set{Name: "mine", Path: "os", Files: []File{
		{URL: r.URL + "/plain.img?x=1", Digest: digest([]byte("plain"))},
		{URL: r.URL + "/plain.img", Digest: digest([]byte("plain")), Name: "sub/copy.img"},
		{URL: r.URL + "/all.tgz", Digest: digest(zipped), Extract: true},
	}}
	c := configFor(t.TempDir(), set)
	f := newFetcher(t, c)
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"os/plain.img": "plain", "os/sub/copy.img": "plain", "os/in/side": "inside",
	}
	if diff := cmp.Diff(want, served(t, f)); diff != "" {
		t.Errorf("served differs (-want +got):\n%s", diff)
	}
	// Served over HTTP, the digest is the ETag.
	h := artifacts.New(artifacts.Config{Directory: f.Directory()})
	defer h.Close()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/os/plain.img", nil))
	if got := strings.ToLower(digest([]byte("plain"))[7:]); w.Header().Get("Etag") != `"`+got+`"` {
		t.Errorf("ETag is %s", w.Header().Get("Etag"))
	}
}

func TestPinnedChecksums(t *testing.T) {
	r := newRelease(t)
	r.set(map[string][]byte{"a-latest-lts-x86_64.iso": []byte("a")})
	sum := sha256.Sum256(r.files["checksum.txt"])
	set := Set{Name: "hook", URL: r.URL, ChecksumsDigest: "sha256:" + hex.EncodeToString(sum[:]), Extension: both}
	f := newFetcher(t, configFor(t.TempDir(), set))
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.set(map[string][]byte{"a-latest-lts-x86_64.iso": []byte("evil")})
	if err := f.Once(t.Context()); stateOf(err) != StateInvalid {
		t.Errorf("got %v", err)
	}
	if got := served(t, f)["a-latest-lts-x86_64.iso"]; got != "a" {
		t.Errorf("got %q", got)
	}
}

func TestDamagedDownloadThatIsServedIsNotTouched(t *testing.T) {
	r := newRelease(t)
	const name = "a-latest-lts-x86_64.iso"
	r.set(map[string][]byte{name: noise(1, 1000)})
	f := newFetcher(t, configFor(t.TempDir(), Set{Name: "hook", URL: r.URL, Extension: both}))
	sum := string(r.files["checksum.txt"][:128])
	a := artifact{set: "hook", name: name, url: r.URL + "/" + name, digest: digest("sha512:" + sum)}
	partial := f.downloader()
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	// As after a kill between the switch and the clearing, and then a flipped bit.
	inode := filepath.Join(f.Directory(), name)
	if err := os.Link(inode, partial.path(a)); err != nil {
		t.Skipf("needs hard links: %v", err)
	}
	if err := os.WriteFile(inode, []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(inode)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := open.Stat()
	if err != nil || info.Size() != int64(len("damaged")) {
		t.Errorf("an open file changed under its reader: %v %v", info.Size(), err)
	}
	if got := served(t, f)[name]; got != string(noise(1, 1000)) {
		t.Error("not healed")
	}
}

func TestRunRetriesAndEnds(t *testing.T) {
	r := newRelease(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := configFor(t.TempDir(), Set{Name: "hook", URL: r.URL, Extension: both})
	f := newFetcher(t, c)
	if f.String() != "artifacts" || f.Ready() == nil {
		t.Error("ready before anything is there")
	}
	ended := make(chan error)
	go func() { ended <- f.Run(ctx) }()
	for f.Status().Sets[0].State != "unavailable" {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestOneWriterAtATime(t *testing.T) {
	r := newRelease(t)
	r.set(map[string][]byte{"a-latest-lts-x86_64.iso": noise(1, 100<<10)})
	r.slow = time.Millisecond
	c := configFor(t.TempDir(), Set{Name: "hook", URL: r.URL, Extension: both})
	ended := make(chan error)
	for range 4 {
		go func() { ended <- newFetcher(t, c).Once(context.Background()) }()
	}
	for range 4 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if got := r.count("a-latest-lts-x86_64.iso"); got != 1 {
		t.Errorf("four replicas made %d downloads", got)
	}
}

// fetchUntilKilled is the process that TestKilled kills.
func fetchUntilKilled(volume, url string) {
	c := configFor(volume, Set{Name: "hook", URL: url, Extension: both})
	f, err := New(c, Options{})
	if err != nil {
		panic(err)
	}
	for {
		_ = f.Once(context.Background())
	}
}

// TestNoRedirectToHTTP: a file that was asked for by https is not fetched by http.
func TestNoRedirectToHTTP(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("asked by http") }))
	defer plain.Close()
	secure := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer secure.Close()
	client := newClient("")
	client.Transport = secure.Client().Transport
	if _, err := client.Get(secure.URL); err == nil || !strings.Contains(err.Error(), "from https to http") {
		t.Errorf("got %v", err)
	}
}

// A circle of redirects is told as such, and not tried again.
func TestRedirectsInACircleEndTheDownload(t *testing.T) {
	var asked atomic.Int32
	circle := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, "/again", http.StatusFound)
	}))
	defer circle.Close()
	_, err := newClient("").Get(circle.URL)
	err = transferError(t.Context(), err)
	if retryable(err) || stateOf(err) != StateUnavailable || !strings.Contains(err.Error(), "redirect refused: more than 4 in a row") {
		t.Errorf("got %v (%s), retried %v", err, stateOf(err), retryable(err))
	}
	if asked.Load() != 5 {
		t.Errorf("asked %d times", asked.Load())
	}
}
