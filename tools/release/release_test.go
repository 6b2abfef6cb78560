package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"go.yaml.in/yaml/v3"
)

func do(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), args, &out)
	return out.String(), err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// archive writes an OCI archive with count indexes of two images each.
func archive(t *testing.T, file string, count int) {
	t.Helper()
	directory := t.TempDir()
	path, err := layout.Write(directory, empty.Index)
	must(t, err)
	for range count {
		index, err := random.Index(100, 1, 2)
		must(t, err)
		must(t, path.AppendIndex(index))
	}
	out, err := os.Create(file)
	must(t, err)
	must(t, tarball(out, os.DirFS(directory)))
	must(t, out.Close())
}

func TestImagesArePushedByDigest(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	defer server.Close()
	from, list := t.TempDir(), filepath.Join(t.TempDir(), "images.json")
	repository := strings.TrimPrefix(server.URL, "http://") + "/me/stack"
	for _, program := range []string{"a", "b"} {
		archive(t, filepath.Join(from, program+".tar"), 1)
		must(t, os.WriteFile(filepath.Join(from, program+".spdx.json"), []byte("{}"), 0o600))
	}
	_, err := do(t, "images", "-from", from, "-repository", repository, "-tag", "v1.2.3", "-list", list)
	must(t, err)
	var images map[string]pushed
	must(t, readJSON(list, &images))
	if len(images) != 2 {
		t.Fatalf("%d images, want 2", len(images))
	}
	for program, image := range images {
		if image.Repository != repository+"/"+program || image.Tag != "v1.2.3" {
			t.Errorf("%s: %+v", program, image)
		}
		for _, reference := range []string{image.Repository + "@" + image.Digest, image.Repository + ":v1.2.3"} {
			ref, err := name.ParseReference(reference)
			must(t, err)
			index, err := remote.Index(ref)
			must(t, err)
			if digest, err := index.Digest(); err != nil || digest.String() != image.Digest {
				t.Errorf("%s is %s, %v", reference, digest, err)
			}
			manifest, err := index.IndexManifest()
			must(t, err)
			if len(manifest.Manifests) != 2 {
				t.Errorf("%s has %d platforms, want 2", reference, len(manifest.Manifests))
			}
		}
	}
}

func TestImagesThatCannotBePushed(t *testing.T) {
	for text, prepare := range map[string]func(t *testing.T, from string){
		"no archives":              func(*testing.T, string) {},
		"failed to find the SBOM":  func(t *testing.T, from string) { archive(t, filepath.Join(from, "a.tar"), 1) },
		"it has 2 images, not one": func(t *testing.T, from string) { archive(t, filepath.Join(from, "a.tar"), 2); sbom(t, from) },
		"failed to push": func(t *testing.T, from string) {
			must(t, os.WriteFile(filepath.Join(from, "a.tar"), []byte("no tar"), 0o600))
			sbom(t, from)
		},
	} {
		t.Run(text, func(t *testing.T) {
			from := t.TempDir()
			prepare(t, from)
			_, err := do(t, "images", "-from", from, "-repository", "127.0.0.1:1/x", "-tag", "v1", "-list", os.DevNull)
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("error %v, want %q", err, text)
			}
		})
	}
}

func sbom(t *testing.T, from string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(from, "a.spdx.json"), []byte("{}"), 0o600))
}

// digest is one of n's own.
func digest(n string) string { return "sha256:" + strings.Repeat(n, 64) }

func images(registry string) map[string]pushed {
	list := make(map[string]pushed)
	for i, program := range []string{"broadcast-init", "dhcp-relay", "stack-boots", "stack-lb", "stack-doctor", "stack-proxy"} {
		list[program] = pushed{
			Repository: registry + "/stack/" + program, Tag: "v1.2.3", Digest: digest(string(rune('a' + i))), SBOM: "x",
		}
	}
	return list
}

// The chart of this repository, made to name images of a registry.
func TestChartNamesTheImages(t *testing.T) {
	list, to := filepath.Join(t.TempDir(), "images.json"), filepath.Join(t.TempDir(), "stack")
	must(t, writeJSON(list, images("registry.example:5000/me")))
	_, err := do(t, "chart", "-from", root+"/charts/stack", "-to", to, "-version", "v9.8.7", "-changelog", root+"/CHANGELOG.md", "-list", list)
	must(t, err)
	changed := func(file string) string {
		before, err := os.ReadFile(filepath.Join(root, "charts/stack", file))
		must(t, err)
		after, err := os.ReadFile(filepath.Join(to, file))
		must(t, err)
		var lines []string
		old := strings.Split(string(before), "\n")
		for _, line := range strings.Split(string(after), "\n") {
			if !strings.Contains(line, "/blob/v9.8.7/") && !strings.Contains("\n"+strings.Join(old, "\n")+"\n", "\n"+line+"\n") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		return strings.Join(lines, "\n")
	}
	if diff := cmp.Diff("", changed("values.yaml")); diff != "" {
		t.Errorf("values.yaml, which --reuse-values keeps (-want +got):\n%s", diff)
	}
	var at published
	must(t, readJSON(filepath.Join(to, "files", "images.json"), &at))
	want := published{Registry: "registry.example:5000", Repository: "me/stack", Digests: map[string]string{}}
	for program, image := range images("registry.example:5000/me") {
		want.Digests[program] = image.Digest
	}
	if diff := cmp.Diff(want, at); diff != "" {
		t.Errorf("images.json (-want +got):\n%s", diff)
	}
	got := changed("Chart.yaml")
	for _, want := range []string{
		"version: \"9.8.7\"\n", "appVersion: \"v9.8.7\"\n", "artifacthub.io/images: |\n- name: broadcast-init\n",
		"image: registry.example:5000/me/stack/stack-proxy:v1.2.3@" + digest("f") + "\n",
	} {
		if !strings.Contains(got+"\n", want) {
			t.Errorf("no %q in what changed in Chart.yaml:\n%s", want, got)
		}
	}
}

// A chart of a commit that is no release has a version of its own, which is a semantic one, below the version to come and
// above that of the commit before it.
func TestChartVersionMovesWithEachCommit(t *testing.T) {
	const commit = "0123456789012345678901234567890123456789"
	for _, test := range []struct {
		programs string
		count    int
		want     string
	}{
		{"v1.2.3", 10, "1.2.3"}, {"1.2.3", 10, "1.2.3"}, {"v1.2.3-rc.1", 10, "1.2.3-rc.1"},
		{"0123456", 9, "1.0.0-0.git.9.g012345678901"}, {"0123456-dirty", 10, "1.0.0-0.git.10.g012345678901.dirty"},
		{"unknown", 11, "1.0.0-0.git.11.g012345678901"}, {"v0.9.0-4-g0123456", 12, "1.0.0-0.git.12.g012345678901"},
		{"v1.0.0-4-g0123456", 13, "1.0.1-0.git.13.g012345678901"},
	} {
		got, err := chartVersion("1.0.0", test.programs, test.count, commit)
		must(t, err)
		if got != test.want {
			t.Errorf("%s gives the chart version %s, want %s", test.programs, got, test.want)
		}
	}
	for _, test := range []struct {
		own, commit string
		count       int
	}{{"1.0", commit, 1}, {"1.0.0", "", 1}, {"1.0.0", commit, 0}} {
		if got, err := chartVersion(test.own, "unknown", test.count, test.commit); err == nil {
			t.Errorf("%v gives the chart version %s", test, got)
		}
	}
}

// packaged is the chart of this repository as it is packaged.
func packaged(t *testing.T, version string) (directory, archive string) {
	t.Helper()
	list := filepath.Join(t.TempDir(), "images.json")
	must(t, writeJSON(list, images("registry.example:5000/me")))
	directory = filepath.Join(t.TempDir(), "stack")
	out, err := do(t, "chart", "-from", root+"/charts/stack", "-to", directory, "-version", version, "-commit", strings.Repeat("0a", 20),
		"-count", "7", "-epoch", "1700000000", "-changelog", root+"/CHANGELOG.md", "-list", list)
	must(t, err)
	return directory, strings.TrimSpace(out)
}

// The package has the same bytes whenever it is made, whatever the files' times and modes are; its own time is the commit's.
func TestPackageHasTheSameBytes(t *testing.T) {
	_, first := packaged(t, "v1.0.0")
	mask := syscall.Umask(0o077)
	_, second := packaged(t, "v1.0.0")
	syscall.Umask(mask)
	a, err := os.ReadFile(first)
	must(t, err)
	b, err := os.ReadFile(second)
	must(t, err)
	if !bytes.Equal(a, b) {
		t.Error("the package has other bytes the second time")
	}
	info, err := os.Stat(second)
	must(t, err)
	if filepath.Base(second) != "stack-1.0.0.tgz" || info.ModTime().Unix() != 1700000000 {
		t.Errorf("%s is of %v", second, info.ModTime())
	}
	if bytes.Contains(a, []byte("schema.defs")) {
		t.Error("the package has what .helmignore names")
	}
}

// Artifact Hub is told whether the version is a candidate, its images and every entry of its section of the changelog.
func TestAnnotationsOfThePackage(t *testing.T) {
	section, err := do(t, "notes", "-changelog", root+"/CHANGELOG.md", "-version", "v1.0.0")
	must(t, err)
	entries := len(regexp.MustCompile(`(?m)^- `).FindAllString(section, -1))
	for version, prerelease := range map[string]string{"v1.0.0": "false", "v1.0.0-rc.1": "true", "98cfe14": "true"} {
		directory, _ := packaged(t, version)
		text, err := os.ReadFile(directory + "/Chart.yaml")
		must(t, err)
		var chart struct{ Annotations map[string]string }
		must(t, yaml.Unmarshal(text, &chart))
		if got := chart.Annotations["artifacthub.io/prerelease"]; got != prerelease {
			t.Errorf("%s: prerelease is %q, want %q", version, got, prerelease)
		}
		var changes []struct{ Kind, Description string }
		must(t, yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/changes"]), &changes))
		if len(changes) != entries || entries == 0 {
			t.Errorf("%s: %d changes of %d entries", version, len(changes), entries)
		}
		for _, change := range changes {
			if !slices.Contains([]string{"added", "changed", "deprecated", "removed", "fixed", "security"}, change.Kind) ||
				change.Description == "" || strings.Contains(change.Description, "](") {
				t.Errorf("a change reads %+v", change)
			}
		}
		var list []struct{ Name, Image string }
		must(t, yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/images"]), &list))
		if len(list) != 6 || !strings.Contains(list[0].Image, "@sha256:") {
			t.Errorf("%s: images %v", version, list)
		}
	}
}

// What the package says of documents is found by who has only the package, and is of its version: links lead to its tag, or to
// its commit, and to files and headings that this repository has.
func TestLinksOfThePackageLeadToItsVersion(t *testing.T) {
	for version, ref := range map[string]string{"v1.0.0": "v1.0.0", "98cfe14-dirty": strings.Repeat("0a", 20)} {
		directory, _ := packaged(t, version)
		found := 0
		must(t, filepath.WalkDir(directory, func(name string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			text := string(content)
			for _, match := range regexp.MustCompile(`tinkerbell/stack/(?:(?:blob|tree)/)?([0-9a-z.]+)/([\w./-]*[\w/])(#[\w-]+)?`).FindAllStringSubmatch(text, -1) {
				if match[1] == "issues" || match[1] == "security" {
					continue
				}
				found++
				if match[1] != ref {
					t.Errorf("%s: %s is not of %s", name, match[0], ref)
				}
				if err := resolves(filepath.Join(root, match[2]), strings.TrimPrefix(match[3], "#")); err != nil {
					t.Errorf("%s: %s: %v", name, match[0], err)
				}
			}
			for _, match := range regexp.MustCompile(`.*tinkerbell/stack/(?:blob|tree)/([^/\s]*).*`).FindAllStringSubmatch(text, -1) {
				if match[1] != ref {
					t.Errorf("%s: no link to %s: %s", name, ref, match[0])
				}
			}
			for _, pattern := range []string{`(?:^|[^\w/.-])docs/\w`, `\.\./\.\./`, `(?:blob|tree|stack)/main/`} {
				if match := regexp.MustCompile(`(?m).*` + pattern + `.*`).FindString(text); match != "" {
					t.Errorf("%s: %s", name, match)
				}
			}
			if strings.HasSuffix(name, ".md") {
				for _, match := range markdownLink.FindAllStringSubmatch(text, -1) {
					if match[1] != "" && !strings.Contains(match[1], "://") {
						t.Errorf("%s: the link %s is a relative one", name, match[1])
					}
				}
			}
			return nil
		}))
		if found < 50 {
			t.Errorf("%d links in the package of %s", found, version)
		}
	}
}

func TestImagesThatAreApart(t *testing.T) {
	apart := images("registry.example/me")
	apart["stack-proxy"] = pushed{Repository: "elsewhere.example/stack/stack-proxy"}
	for want, list := range map[string]map[string]pushed{
		"not beside":                 apart,
		"is not a registry and a pa": {"stack-proxy": {Repository: "here/stack-proxy"}},
	} {
		if _, err := publishedAt(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestProvenance(t *testing.T) {
	commit := strings.Repeat("0a", 20)
	out, err := do(t, "provenance", "-source", "https://example/x", "-revision", commit, "-version", "v1",
		"-platforms", "linux/amd64", "-builder", "https://example/w@refs/tags/v1", "-invocation", "https://example/1")
	must(t, err)
	var got, want any
	must(t, json.Unmarshal([]byte(out), &got))
	must(t, json.Unmarshal([]byte(`{
		"buildDefinition": {
			"buildType": "https://github.com/tinkerbell/stack/blob/main/docs/release.md#provenance",
			"externalParameters": {"version": "v1", "platforms": "linux/amd64"},
			"resolvedDependencies": [{"uri": "git+https://example/x", "digest": {"gitCommit": "`+commit+`"}}]},
		"runDetails": {"builder": {"id": "https://example/w@refs/tags/v1"},
			"metadata": {"invocationId": "https://example/1"}}}`), &want))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("predicate (-want +got):\n%s", diff)
	}
	for _, args := range [][]string{
		{"-revision", "unknown", "-builder", "x"}, {"-revision", commit}, {"-revision", commit + "-dirty", "-builder", "x"},
	} {
		if _, err := do(t, append([]string{"provenance"}, args...)...); err == nil {
			t.Errorf("%v gives a predicate", args)
		}
	}
}

func TestArtifacts(t *testing.T) {
	directory := t.TempDir()
	list, push := filepath.Join(directory, "images.json"), filepath.Join(directory, "chart.txt")
	must(t, writeJSON(list, images("r.example:5000")))
	must(t, os.WriteFile(push, []byte("Pushed: r.example:5000/charts/stack:1.0.0\nDigest: "+digest("e")+"\n"), 0o600))
	out, err := do(t, "artifacts", "-list", list, "-chart", push)
	must(t, err)
	want := "image r.example:5000/stack/broadcast-init@" + digest("a") + " x\n" +
		"image r.example:5000/stack/dhcp-relay@" + digest("b") + " x\n" +
		"image r.example:5000/stack/stack-boots@" + digest("c") + " x\n" +
		"image r.example:5000/stack/stack-doctor@" + digest("e") + " x\n" +
		"image r.example:5000/stack/stack-lb@" + digest("d") + " x\n" +
		"image r.example:5000/stack/stack-proxy@" + digest("f") + " x\n" +
		"chart r.example:5000/charts/stack@" + digest("e") + " -\n"
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	must(t, os.WriteFile(push, []byte("Error: denied\n"), 0o600))
	if _, err := do(t, "artifacts", "-list", list, "-chart", push); err == nil {
		t.Error("a chart that was not pushed is to be signed")
	}
}

// A release's notes leave nothing out, and their links lead to its documents.
func TestNotesOfARelease(t *testing.T) {
	changelog := filepath.Join(t.TempDir(), "CHANGELOG.md")
	must(t, os.WriteFile(changelog, []byte("## [1.0.0]\n- one: [docs/x.md](docs/x.md#y)\n"), 0o600))
	got, err := do(t, "notes", "-changelog", changelog, "-version", "v1.0.0")
	must(t, err)
	if want := "- one: [docs/x.md](https://github.com/tinkerbell/stack/blob/v1.0.0/docs/x.md#y)\n"; got != want {
		t.Errorf("notes %q, want %q", got, want)
	}
	must(t, os.WriteFile(changelog, []byte("## [Unreleased]\n- two\n\n## [1.0.0]\n- one\n"), 0o600))
	if _, err := do(t, "notes", "-changelog", changelog, "-version", "v1.0.0"); err == nil || !strings.Contains(err.Error(), "Unreleased") {
		t.Errorf("entries under [Unreleased] are left out: %v", err)
	}
}

func TestNotes(t *testing.T) {
	const text = `# Changelog

## [Unreleased]

## [1.1.0] - 2026-12-01
### Added
- two

## [1.0.0] - 2026-11-22
- one

[1.0.0]: https://example
`
	for version, want := range map[string]string{
		"v1.1.0": "### Added\n- two\n", "1.0.0": "- one\n",
		"Unreleased": "error: section \"## [Unreleased]\" is empty", "v1.0": "error: no section \"## [1.0]\"",
	} {
		got, err := notes(text, version)
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
}

// The changelog has a section for the chart's version, which a release would be of.
func TestChangelogHasTheChartsVersion(t *testing.T) {
	chart, err := os.ReadFile(root + "/charts/stack/Chart.yaml")
	must(t, err)
	version := regexp.MustCompile(`(?m)^version: (\S+)$`).FindSubmatch(chart)
	if _, err := do(t, "notes", "-changelog", root+"/CHANGELOG.md", "-version", "v"+string(version[1])); err != nil {
		t.Error(err)
	}
	// The icon is a file of this repository.
	icon := regexp.MustCompile(`(?m)^icon: https://raw\.githubusercontent\.com/tinkerbell/stack/main/(\S+)$`).FindSubmatch(chart)
	if icon == nil {
		t.Fatal("no icon in Chart.yaml")
	}
	if _, err := os.Stat(filepath.Join(root, string(icon[1]))); err != nil {
		t.Error(err)
	}
}

// Two commands, in README.md and in the chart's own.
func TestInstallingTakesTwoCommands(t *testing.T) {
	out, err := do(t, "installing", "-document", root+"/README.md")
	must(t, err)
	list := strings.Split(strings.TrimSpace(out), "\n")
	if len(list) != 2 || !strings.HasPrefix(list[0], "make publish ") || !strings.HasPrefix(list[1], "helm install stack oci://$REGISTRY/") {
		t.Errorf("README.md installs by %q", list)
	}
	text, err := os.ReadFile(root + "/charts/stack/README.md")
	must(t, err)
	// A release needs no --devel.
	if !strings.Contains(string(text), strings.Replace(list[1], " --devel", "", 1)) {
		t.Errorf("charts/stack/README.md does not have %q", list[1])
	}
}

func TestCommands(t *testing.T) {
	got, err := commands("# x\n```sh\nno\n```\n## Installing it\ntext\n```sh\n# a comment\na \\\n  b\n\nc   # said\n```\n```sh\nno\n```\n")
	must(t, err)
	if diff := cmp.Diff([]string{"a    b", "c   # said"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := commands("## Working on it\n```sh\nx\n```\n"); err == nil {
		t.Error("commands of a document that has none")
	}
}

func TestWrongVerb(t *testing.T) {
	for _, args := range [][]string{nil, {"help"}} {
		if _, err := do(t, args...); err == nil || !strings.Contains(err.Error(), "no verb") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
