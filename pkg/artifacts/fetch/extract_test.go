package fetch

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// extractTo extracts into a fresh directory, and returns what is in it.
func extractTo(t testing.TB, text []byte, limit int64) (map[string]string, error) {
	t.Helper()
	outer := t.TempDir()
	dir := filepath.Join(outer, "staged")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "x.tar.gz")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x := &extractor{root: root, dir: "os", maxBytes: limit, maxFiles: 20}
	files, err := x.extract(t.Context(), file)
	if entries, _ := os.ReadDir(outer); len(entries) != 1 {
		t.Errorf("something was made outside: %v", entries)
	}
	got := map[string]string{}
	for name, f := range files {
		info, statErr := root.Lstat(name)
		if statErr != nil {
			t.Errorf("%s is listed and not there: %v", name, statErr)
			continue
		}
		body, _ := root.ReadFile(name)
		got[name] = string(body)
		if f.Size != int64(len(body)) && err == nil {
			t.Errorf("%s: size %d, want %d", name, f.Size, len(body))
		}
		if !info.Mode().IsRegular() || info.Mode().Perm()&^0o644 != 0 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	return got, err
}

func reg(name, body string) entry  { return entry{name: name, body: []byte(body)} }
func soft(name, link string) entry { return entry{name: name, kind: tar.TypeSymlink, link: link} }

func TestExtract(t *testing.T) {
	many := make([]entry, 30)
	for i := range many {
		many[i] = entry{name: strconv.Itoa(i), body: []byte("x")}
	}
	tests := map[string]struct {
		entries []entry
		want    map[string]string
		bad     string
	}{
		"files and directories": {
			entries: []entry{
				{name: "./", kind: tar.TypeDir}, reg("./a", "A"), {name: "d/", kind: tar.TypeDir},
				reg("d/b", "B"), reg("no/dir/c", "C"), {name: "empty"},
			},
			want: map[string]string{"os/a": "A", "os/d/b": "B", "os/no/dir/c": "C", "os/empty": ""},
		},
		"names that are never served are left out": {
			entries: []entry{reg(".manifest", "evil"), reg("a/.x/b", "B"), reg("a", "A")},
			want:    map[string]string{"os/a": "A"},
		},
		"links inside": {
			entries: []entry{
				soft("vmlinuz", "d/vmlinuz-1"), {name: "d/hard", kind: tar.TypeLink, link: "d/vmlinuz-1"},
				soft("d/soft", "../vmlinuz"), reg("d/vmlinuz-1", "K"),
			},
			want: map[string]string{"os/vmlinuz": "K", "os/d/hard": "K", "os/d/soft": "K", "os/d/vmlinuz-1": "K"},
		},
		"parent":             {entries: []entry{reg("../evil", "x")}, bad: "leads out"},
		"parent inside":      {entries: []entry{reg("a/../../evil", "x")}, bad: "leads out"},
		"absolute":           {entries: []entry{reg("/etc/evil", "x")}, bad: "leads out"},
		"link to absolute":   {entries: []entry{soft("l", "/etc/passwd")}, bad: "leads out"},
		"link out":           {entries: []entry{soft("d/l", "../../x")}, bad: "leads out"},
		"hard link out":      {entries: []entry{{name: "l", kind: tar.TypeLink, link: "../x"}}, bad: "leads out"},
		"link to nothing":    {entries: []entry{soft("l", "x")}, bad: "no file"},
		"link to directory":  {entries: []entry{{name: "d/x"}, soft("l", "d")}, bad: "no file"},
		"links in a circle":  {entries: []entry{soft("a", "b"), soft("b", "a")}, bad: "no end"},
		"through a link":     {entries: []entry{soft("d", ".."), reg("d/x", "x")}, bad: "leads out"},
		"link as directory":  {entries: []entry{reg("f", "F"), soft("d", "f"), reg("d/x", "x")}, bad: "same file"},
		"device":             {entries: []entry{{name: "null", kind: tar.TypeChar}}, bad: "device"},
		"fifo":               {entries: []entry{{name: "p", kind: tar.TypeFifo}}, bad: "device"},
		"twice":              {entries: []entry{reg("a", "1"), reg("./a", "2")}, bad: "twice"},
		"file and directory": {entries: []entry{reg("a", "1"), reg("a/b", "2")}, bad: "same file"},
		"too large":          {entries: []entry{{name: "a", body: make([]byte, 1<<20+1)}}, bad: "larger"},
		"too many":           {entries: many, bad: "more than 20"},
		"nothing":            {entries: []entry{{name: "d/", kind: tar.TypeDir}}, bad: "no file"},
		"odd name":           {entries: []entry{reg("a\\b", "x")}, bad: "no name"},
		"long name":          {entries: []entry{{name: strings.Repeat("a", 300), body: []byte("x")}}, bad: "no name"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := extractTo(t, archive(t, test.entries...), 1<<20)
			if test.bad == "" {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("extracted differs (-want +got):\n%s", diff)
				}
				return
			}
			if stateOf(err) != StateInvalid || !strings.Contains(err.Error(), test.bad) {
				t.Errorf("got %v, want %q", err, test.bad)
			}
		})
	}
}

func TestExtractDamaged(t *testing.T) {
	good := archive(t, entry{name: "a", body: noise(1, 10000)})
	bomb := &bytes.Buffer{}
	zip := gzip.NewWriter(bomb)
	w := tar.NewWriter(zip)
	_ = w.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 1 << 40})
	_, _ = zip.Write(make([]byte, 4<<20))
	_ = zip.Close()
	for name, text := range map[string][]byte{
		"truncated": good[:len(good)/2], "not an archive": []byte("hello"), "empty": nil, "a bomb": bomb.Bytes(),
		"only gzip": good[:10],
	} {
		if got, err := extractTo(t, text, 1<<20); !errors.Is(err, errArchive) {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
	if got, err := extractTo(t, good, 1<<20); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}

func FuzzExtract(f *testing.F) {
	f.Add(archive(f, reg("./a", "A"), soft("l", "a")))
	f.Add(archive(f, reg("../a", "A")))
	f.Add([]byte("x"))
	plain, err := gzip.NewReader(bytes.NewReader(archive(f, soft("l", "a"), reg("a", "A"), reg("b/c", "C"))))
	if err != nil {
		f.Fatal(err)
	}
	text, err := io.ReadAll(plain)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<16 {
			return
		}
		got, err := extractTo(t, text, 1<<16) // reports what is made outside
		for name := range got {
			if !strings.HasPrefix(name, "os/") || !validName(name) {
				t.Errorf("made %q", name)
			}
		}
		if err == nil && len(got) == 0 {
			t.Error("nothing, and no error")
		}
	})
}
