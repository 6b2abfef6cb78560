package fetch

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const sum512 = "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce" +
	"47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"

func TestChecksums(t *testing.T) {
	sum256 := sum512[:64]
	tests := map[string]struct {
		text string
		want map[string]digest
		bad  string
	}{
		"as sha512sum writes": {
			text: sum512 + "  a.iso\n" + sum512 + " *b.iso\n",
			want: map[string]digest{"a.iso": "sha512:" + sum512, "b.iso": "sha512:" + sum512},
		},
		"windows, comment, blank, upper case, no last newline": {
			text: "# release\r\n\r\n" + strings.ToUpper(sum512) + "  ./a.iso\r\n" + sum256 + "  b.iso",
			want: map[string]digest{"a.iso": "sha512:" + sum512, "b.iso": "sha256:" + digest(sum256)},
		},
		"same twice": {
			text: sum256 + "  a\n" + sum256 + "  a\n",
			want: map[string]digest{"a": "sha256:" + digest(sum256)},
		},
		"other digest":   {text: sum256 + "  a\n" + sum512 + "  a\n", bad: "line 2 has another digest"},
		"short digest":   {text: sum512[:40] + "  a\n", bad: "line 1 has a digest of 160 bits"},
		"cut":            {text: sum512 + "  a\n" + sum512[:61], bad: "line 2"},
		"cut even":       {text: sum512 + "  a\n" + sum512[:64], bad: "line 2"},
		"a page":         {text: "<html>\n", bad: "line 1"},
		"traversal":      {text: sum512 + "  ../a\n", bad: `line 1 has the name "../a"`},
		"directory":      {text: sum512 + "  a/b\n", bad: "line 1 has the name"},
		"hidden":         {text: sum512 + "  .manifest\n", bad: "line 1 has the name"},
		"no name":        {text: sum512 + "  \n", bad: "line 1"},
		"escaped":        {text: "\\" + sum512 + "  a\\nb\n", bad: "line 1"},
		"endless line":   {text: sum512 + "  " + strings.Repeat("a", 1<<17), bad: "too long"},
		"nothing at all": {want: map[string]digest{}},
	}
	for name, test := range tests {
		got, err := parseChecksums([]byte(test.text))
		if test.bad != "" {
			if err == nil || !strings.Contains(err.Error(), test.bad) || stateOf(err) != StateInvalid {
				t.Errorf("%s: got %v, want %q", name, err, test.bad)
			}
			continue
		}
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
}

func FuzzChecksums(f *testing.F) {
	f.Add([]byte(sum512 + "  a.iso\n"))
	f.Add([]byte("# x\r\n" + sum512[:64] + " *./b\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		sums, err := parseChecksums(text)
		for name, d := range sums {
			if !validName(name) || strings.Contains(name, "/") {
				t.Errorf("accepted the name %q", name)
			}
			if _, err := parseDigest(string(d)); err != nil {
				t.Error(err)
			}
		}
		if err != nil && sums != nil {
			t.Error("both a list and an error")
		}
	})
}

func TestParse(t *testing.T) {
	got, err := Parse([]byte(`
volume: /artifacts
checkEvery: 6h
maxSize: 20Gi
sets:
- name: hook
  url: https://example.org/releases/latest/
  arch: x86_64
- name: mine
  path: images
  files:
  - url: http://192.0.2.1/a.img
    digest: sha512:` + sum512 + `
`))
	want := Config{
		Volume: "/artifacts", CheckEvery: got.CheckEvery, MaxSize: 20 << 30,
		Sets: []Set{
			{Name: "hook", URL: "https://example.org/releases/latest/", Arch: "x86_64"},
			{Name: "mine", Path: "images", Files: []File{{URL: "http://192.0.2.1/a.img", Digest: "sha512:" + sum512}}},
		},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" || got.CheckEvery.D() != 6*time.Hour {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestEveryFaultIsNamed(t *testing.T) {
	_, err := Parse([]byte(`
volume: artifacts
checkEvery: 1s
attempts: 7
sets:
- name: Hook
  url: ftp://user:secret@example.org/
  arch: mips
  kernelVersion: "7"
  extension: zip
  path: ../x
  names: ["["]
  checksumsDigest: md5:00
- name: both
  url: http://example.org
  files: [{url: "http://example.org/a", digest: ""}]
- name: both
- name: files
  arch: both
  files:
  - {url: "http:///a", digest: "sha256:00"}
  - {url: "http://example.org/b.zip", digest: "sha512:` + sum512 + `", extract: true}
  - {url: "http://example.org/x/b.zip", digest: "sha512:` + sum512 + `"}
  - {url: "http://example.org/", digest: "sha512:` + sum512 + `"}
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"volume: \"artifacts\" is not an absolute path", "checkEvery: 1s is too often", "attempts: is no field any more: leave it out",
		`sets[0].name: "Hook"`, "sets[0].url: \"ftp://user:xxxxx@example.org/\" begins with neither",
		`sets[0].arch: "mips" is not one of x86_64, aarch64, both`, `sets[0].kernelVersion: "7"`,
		`sets[0].extension: "zip"`, `sets[0].path: "../x"`, `sets[0].names[0]`, `sets[0].checksumsDigest`,
		"sets[1].url: a set has either a url", "sets[1].files[0].digest", "sets[2].name: \"both\" is taken",
		"sets[2].url: missing",
		"sets[3].files: arch", "sets[3].files[0].url: \"http:///a\" names no host", "sets[3].files[0].digest",
		"sets[3].files[1].extract", "sets[3].files[2].name: \"b.zip\" is taken", "sets[3].files[3].name: \"/\"",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Error("a password is shown")
	}
	if _, err := New(Config{}, Options{}); err == nil {
		t.Error("nothing was accepted")
	}
}

// A newcomer's file: everything that is wrong is told at once, with its line, and nothing in the words of Go.
func TestFaultsHaveLines(t *testing.T) {
	_, err := Parse([]byte(`volume: files
checkEvery: 5
maxSize: many
sets:
- name: Hook
  ulr: https://example.org/
  arch: 5
- name: images
  files:
    url: http://example.org/a
    digest: sha256:00
`))
	want := []string{
		`line 1: volume: "files" is not an absolute path`,
		"line 2: checkEvery: 5 is no duration: write it with its unit, as in 30s",
		`line 3: maxSize: "many" is no size: write it as in 512Mi or 10Gi`,
		`line 5: sets[0].name: "Hook" is not made of lower case letters, digits, dots and dashes`,
		"line 5: sets[0].url: missing (or oci, or files)",
		"line 6: sets[0].ulr: no such field (did you mean url?)",
		"line 7: sets[0].arch: 5 is not a text: put it in quotes",
		`line 11: sets[1].files[0].digest: "sha256:00" is neither sha256: with 64 hexadecimal digits nor sha512: with 128`,
	}
	if err == nil {
		t.Fatal("accepted")
	}
	if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("volume: /a\nsets: [{name: a, url: 'http://h'}]\n")
	f.Add("volume: /a\nmaxSize: 1Gi\nsets: [{name: a, files: [{url: 'http://h/a', digest: x}]}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text))
		if err != nil {
			return
		}
		for _, set := range c.Sets {
			for _, file := range set.Files {
				if !validName(file.name()) {
					t.Errorf("accepted the name %q", file.name())
				}
			}
		}
	})
}
