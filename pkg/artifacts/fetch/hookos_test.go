package fetch

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/tinkerbell/stack/pkg/artifacts"
)

// hookOS is a release with the names that HookOS published it by (testdata/hookos): the archives hold a kernel and an
// initramfs with the archive's own name, those of ARM device trees, too.
func hookOS(t testing.TB, version string) map[string][]byte {
	t.Helper()
	list, err := os.ReadFile(filepath.Join("testdata/hookos", version))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for name := range strings.FieldsSeq(string(list)) {
		id, isArchive := strings.CutSuffix(strings.TrimPrefix(name, "hook_"), ".tar.gz")
		if !isArchive {
			files[name] = []byte(name)
			continue
		}
		entries := []entry{reg("vmlinuz-"+id, "kernel "+id), reg("initramfs-"+id, "initramfs "+id)}
		if strings.Contains(id, "aarch64") || strings.HasPrefix(id, "armbian") {
			entries = append(entries, reg("dtbs-"+id+".tar.gz", "trees "+id))
		}
		files[name] = archive(t, entries...)
	}
	return files
}

// TestMachinesFindTheKernelOfEveryHookOS asks for what Smee v0.15 and Tinkerbell 0.18 to 0.25 have machines load: their
// scripts say vmlinuz-${arch} and initramfs-${arch}, whatever kernel it is.
func TestMachinesFindTheKernelOfEveryHookOS(t *testing.T) {
	tests := map[string]struct {
		version, kernel, want string
	}{
		"no kernel 6.6 in a mirror": {"5.10-only", "", ""},
		"the first with a list":     {"v0.9.0", "", "latest-lts-"},
		"of Smee v0.15's time":      {"v0.10.0", "", "latest-lts-"},
		"of Tinkerbell 0.25":        {"v0.11.1", "", "latest-lts-"},
		"after that":                {"latest", "", "latest-lts-"},
		"6.6 wanted":                {"v0.11.1", kernel66, "latest-lts-"},
		"5.10 wanted":               {"v0.11.1", kernel510, ""},
		"both wanted":               {"v0.11.1", both, "latest-lts-"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRelease(t)
			r.set(hookOS(t, test.version))
			f := newFetcher(t, configFor(t.TempDir(), Set{Name: "hook", URL: r.URL, KernelVersion: test.kernel}))
			if err := f.Once(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := served(t, f)
			for _, arch := range []string{"x86_64", "aarch64"} {
				if want := "kernel " + test.want + arch; got["vmlinuz-"+arch] != want {
					t.Errorf("vmlinuz-%s is %q, not %q", arch, got["vmlinuz-"+arch], want)
				}
				if want := "initramfs " + test.want + arch; got["initramfs-"+arch] != want {
					t.Errorf("initramfs-%s is %q, not %q", arch, got["initramfs-"+arch], want)
				}
			}
			if own := got["5.10/vmlinuz-x86_64"]; test.kernel == both && own != "kernel x86_64" {
				t.Errorf("5.10's own kernel is %q", own)
			}
			for file := range got {
				if strings.HasSuffix(file, ".iso") || strings.Contains(file, "armbian") {
					t.Errorf("%s was fetched, for which nobody asked", file)
				}
			}
		})
	}
}

// TestFormerChartsBothLeavesKernel510ItsNames has the two sets that the chart makes of the former one's kernelVersion: both.
func TestFormerChartsBothLeavesKernel510ItsNames(t *testing.T) {
	r := newRelease(t)
	r.set(hookOS(t, "v0.10.0"))
	f := newFetcher(t, configFor(t.TempDir(), Set{Name: "hook", URL: r.URL, Arch: both, KernelVersion: kernel510},
		Set{Name: "hook-6.6", URL: r.URL, Arch: both, KernelVersion: kernel66}))
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := served(t, f)
	for name, want := range map[string]string{
		"vmlinuz-x86_64": "kernel x86_64", "initramfs-aarch64": "initramfs aarch64",
		"vmlinuz-latest-lts-x86_64": "kernel latest-lts-x86_64", "initramfs-latest-lts-aarch64": "initramfs latest-lts-aarch64",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, not %q", name, got[name], want)
		}
	}
}

func TestAReleaseWithoutWhatIsWantedIsNamed(t *testing.T) {
	r := newRelease(t)
	tests := map[string]struct {
		version string
		set     Set
		want    string
	}{
		"no ISO":                  {"v0.9.0", Set{Extension: "iso"}, "the release lists no iso, of 11 artifacts"},
		"a mirror of x86_64 only": {"x86_64-only", Set{Arch: both}, "the release lists no aarch64, of 2 artifacts"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r.set(hookOS(t, test.version))
			test.set.Name, test.set.URL = "hook", r.URL
			err := newFetcher(t, configFor(t.TempDir(), test.set)).Once(t.Context())
			if stateOf(err) != StateInvalid || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), r.URL) {
				t.Errorf("got %v (%s)", err, stateOf(err))
			}
		})
	}
	t.Run("no list", func(t *testing.T) {
		r.fail("checksum.txt", gone)
		err := newFetcher(t, configFor(t.TempDir(), Set{Name: "hook", URL: r.URL})).Once(t.Context())
		if err == nil || !strings.Contains(err.Error(), "failed to download checksum.txt") || !strings.Contains(err.Error(), "since 0.9") {
			t.Errorf("got %v", err)
		}
	})
}

// TestARenamedArchiveHasItsBootNames is of a vendor that renames HookOS's archive, and not what is in it.
func TestARenamedArchiveHasItsBootNames(t *testing.T) {
	r := newRelease(t)
	r.set(map[string][]byte{"hook_x86_64.tar.gz": hook(t, "")["hook_latest-lts-x86_64.tar.gz"]})
	f := newFetcher(t, configFor(t.TempDir(), Set{Name: "hook", URL: r.URL, KernelVersion: kernel510}))
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := served(t, f)["vmlinuz-x86_64"]; got != "kernel latest-lts-x86_64" {
		t.Errorf("got %q", got)
	}
}

var (
	yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")
	hookURL   = regexp.MustCompile(`https://(?:github\.com/tinkerbell|example\.org)/hook/releases/download/([a-z0-9.]+)`)
)

// TestEveryExampleFetchesABootableHookOS fetches what the chart's examples and the documents have in files.fetch, from a
// release with the names of the one that they name.
func TestEveryExampleFetchesABootableHookOS(t *testing.T) {
	texts := map[string]string{}
	files, err := filepath.Glob("../../../charts/stack/examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents, err := filepath.Glob("../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(append(files, documents...), "../../../README.md", "../../../charts/stack/README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, ".yaml") {
			texts[filepath.Base(file)] = string(text)
			continue
		}
		for i, block := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(block[1], "sets:") {
				texts[fmt.Sprintf("%s block %d", filepath.Base(file), i)] = block[1]
			}
		}
	}
	fetched := 0
	for name, text := range texts {
		found := hookURL.FindStringSubmatch(text)
		if found == nil {
			continue
		}
		fetched++
		t.Run(name, func(t *testing.T) {
			r := newRelease(t)
			r.set(hookOS(t, found[1]))
			var values struct {
				Sets  []Set `json:"sets"`
				Files struct {
					Fetch struct {
						Sets []Set `json:"sets"`
					} `json:"fetch"`
				} `json:"files"`
			}
			if err := yaml.Unmarshal([]byte(text), &values); err != nil {
				t.Fatal(err)
			}
			for _, set := range append(values.Sets, values.Files.Fetch.Sets...) {
				if !hookURL.MatchString(set.URL) {
					continue
				}
				set.URL = r.URL
				f := newFetcher(t, configFor(t.TempDir(), set))
				if err := f.Once(t.Context()); err != nil {
					t.Fatal(err)
				}
				for _, arch := range []string{archX86, archARM} {
					kernel, initrd := served(t, f)["vmlinuz-"+arch], served(t, f)["initramfs-"+arch]
					if kernel == "" || strings.TrimPrefix(kernel, "kernel ") != strings.TrimPrefix(initrd, "initramfs ") {
						t.Errorf("vmlinuz-%s is %q, initramfs-%s %q", arch, kernel, arch, initrd)
					}
				}
			}
		})
	}
	if fetched < 13 {
		t.Errorf("%d examples fetch HookOS", fetched)
	}
}

func TestOneArchitectureAloneHasItsBootNames(t *testing.T) {
	r := newRelease(t)
	r.set(hookOS(t, "v0.11.1"))
	f := newFetcher(t, configFor(t.TempDir(), Set{Name: "hook", URL: r.URL, Arch: "aarch64", Path: "hook"}))
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"hook/vmlinuz-latest-lts-aarch64":     "kernel latest-lts-aarch64",
		"hook/initramfs-latest-lts-aarch64":   "initramfs latest-lts-aarch64",
		"hook/vmlinuz-aarch64":                "kernel latest-lts-aarch64",
		"hook/initramfs-aarch64":              "initramfs latest-lts-aarch64",
		"hook/dtbs-latest-lts-aarch64.tar.gz": "trees latest-lts-aarch64",
	}
	if diff := cmp.Diff(want, served(t, f)); diff != "" {
		t.Errorf("served differs (-want +got):\n%s", diff)
	}
}

func TestBootNamesFollowTheReleaseAndYieldToFiles(t *testing.T) {
	r := newRelease(t)
	r.set(hook(t, " 1"))
	old := newRelease(t)
	old.set(map[string][]byte{"hook_x86_64.tar.gz": hook(t, "")["hook_x86_64.tar.gz"]})
	volume := t.TempDir()
	hookSet := Set{Name: "hook", URL: r.URL, Arch: "x86_64"}
	expect := func(step, want string, sets ...Set) *Fetcher {
		t.Helper()
		f := newFetcher(t, configFor(volume, sets...))
		if err := f.Once(t.Context()); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		got := served(t, f)
		if got["vmlinuz-x86_64"] != "kernel "+want || got["initramfs-x86_64"] != "initramfs "+want {
			t.Errorf("%s: got %q and %q, want those of %q", step, got["vmlinuz-x86_64"], got["initramfs-x86_64"], want)
		}
		return f
	}
	expect("the release", "latest-lts-x86_64 1", hookSet)
	r.set(hook(t, " 2"))
	f := expect("a newer one", "latest-lts-x86_64 2", hookSet)
	again, _ := os.Readlink(f.Directory())
	expect("the same once more", "latest-lts-x86_64 2", hookSet)
	if now, _ := os.Readlink(f.Directory()); now != again {
		t.Error("switched without a reason")
	}
	plain := Set{Name: "plain", URL: old.URL}
	expect("a set with files of these names", "x86_64", hookSet, plain)
	expect("that set gone", "latest-lts-x86_64 2", hookSet)
	if err := os.Remove(filepath.Join(f.Directory(), "vmlinuz-x86_64")); err != nil {
		t.Fatal(err)
	}
	expect("the name gone from the disk", "latest-lts-x86_64 2", hookSet)
}

func TestAVolumeOfAnOlderVersionGetsItsBootNames(t *testing.T) {
	r := newRelease(t)
	r.set(hook(t, ""))
	f := newFetcher(t, configFor(t.TempDir(), Set{Name: "hook", URL: r.URL, Arch: "x86_64"}))
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	// As a version fetched it that did not know these names.
	manifest, err := artifacts.ReadManifest(os.DirFS(f.Directory()))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vmlinuz-x86_64", "initramfs-x86_64"} {
		delete(manifest.Files, name)
		if err := os.Remove(filepath.Join(f.Directory(), name)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := manifest.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.Directory(), artifacts.ManifestName), text, 0o644); err != nil {
		t.Fatal(err)
	}
	r.reset()
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := served(t, f)["vmlinuz-x86_64"]; got != "kernel latest-lts-x86_64" {
		t.Errorf("got %q", got)
	}
	if n := r.count("hook_latest-lts-x86_64.tar.gz"); n != 0 {
		t.Errorf("the archive was fetched again %d times", n)
	}
}

func TestAKernelWithoutItsInitramfsGetsNoBootName(t *testing.T) {
	r := newRelease(t)
	r.set(map[string][]byte{
		"hook_latest-lts-x86_64.tar.gz":  archive(t, reg("vmlinuz-latest-lts-x86_64", "kernel")),
		"hook_latest-lts-aarch64.tar.gz": archive(t, reg("vmlinuz-latest-lts-aarch64", "kernel"), reg("initramfs-aarch64", "another's")),
	})
	f := newFetcher(t, configFor(t.TempDir(), Set{Name: "hook", URL: r.URL}))
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"vmlinuz-latest-lts-x86_64": "kernel", "vmlinuz-latest-lts-aarch64": "kernel", "initramfs-aarch64": "another's",
	}
	if diff := cmp.Diff(want, served(t, f)); diff != "" {
		t.Errorf("served differs (-want +got):\n%s", diff)
	}
}
