package artifacts

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func files(t *testing.T) string {
	t.Helper()
	outside := t.TempDir()
	directory := t.TempDir()
	for name, text := range map[string]string{
		filepath.Join(outside, "secret"):                "secret",
		filepath.Join(directory, "vmlinuz-x86_64"):      "0123456789",
		filepath.Join(directory, "sub", "initramfs.gz"): "gz",
		filepath.Join(directory, ".hidden"):             "hidden",
		filepath.Join(directory, ".git", "config"):      "hidden",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"out": filepath.Join(outside, "secret"), "in": "vmlinuz-x86_64", "up": "../" + filepath.Base(outside) + "/secret",
	} {
		if err := os.Symlink(target, filepath.Join(directory, link)); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

func TestServe(t *testing.T) {
	h := New(Config{Directory: files(t)})
	get := func(method, path string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "http://h/", nil)
		r.URL.Path = path
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	tag := get("GET", "/vmlinuz-x86_64").Header().Get("ETag")
	tests := map[string]struct {
		got  *httptest.ResponseRecorder
		code int
		body string
	}{
		"file":            {get("GET", "/vmlinuz-x86_64"), 200, "0123456789"},
		"below":           {get("GET", "/sub/initramfs.gz"), 200, "gz"},
		"head":            {get("HEAD", "/vmlinuz-x86_64"), 200, ""},
		"range":           {get("GET", "/vmlinuz-x86_64", "Range", "bytes=2-4"), 206, "234"},
		"range from end":  {get("GET", "/vmlinuz-x86_64", "Range", "bytes=-2"), 206, "89"},
		"range too far":   {get("GET", "/vmlinuz-x86_64", "Range", "bytes=99-"), 416, "invalid range"},
		"if-range, same":  {get("GET", "/vmlinuz-x86_64", "Range", "bytes=0-0", "If-Range", tag), 206, "0"},
		"if-range, other": {get("GET", "/vmlinuz-x86_64", "Range", "bytes=0-0", "If-Range", `"x"`), 200, "0123456789"},
		"not modified":    {get("GET", "/vmlinuz-x86_64", "If-None-Match", tag), 304, ""},
		"link inside":     {get("GET", "/in"), 200, "0123456789"},
		"link out":        {get("GET", "/out"), 404, "no such file"},
		"link up":         {get("GET", "/up"), 404, "no such file"},
		"listing":         {get("GET", "/"), 404, "no such file"},
		"listing below":   {get("GET", "/sub/"), 404, "no such file"},
		"dotfile":         {get("GET", "/.hidden"), 404, "no such file"},
		"dot directory":   {get("GET", "/.git/config"), 404, "no such file"},
		"traversal":       {get("GET", "/../../etc/passwd"), 404, "no such file"},
		"absent":          {get("GET", "/absent"), 404, "no such file"},
		"nul":             {get("GET", "/a\x00b"), 404, "no such file"},
		"upload":          {get("PUT", "/vmlinuz-x86_64"), 405, "only GET and HEAD"},
		"double slash":    {get("GET", "//sub//initramfs.gz"), 200, "gz"},
		"multiple ranges": {get("GET", "/vmlinuz-x86_64", "Range", "bytes=0-0,9-9"), 206, "*"},
		"precondition":    {get("GET", "/vmlinuz-x86_64", "If-Match", `"x"`), 412, ""},
	}
	for name, test := range tests {
		body := strings.TrimSpace(test.got.Body.String())
		matches := body == test.body || test.body == "*" || (test.code == 416 && strings.HasPrefix(body, test.body))
		if test.got.Code != test.code || !matches {
			t.Errorf("%s: got %d %q, want %d %q", name, test.got.Code, body, test.code, test.body)
		}
	}
	if got := get("GET", "/sub/initramfs.gz").Header().Get("Content-Type"); got != "application/gzip" {
		t.Errorf("type of .gz is %q", got)
	}
}

func TestReady(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "late")
	h := New(Config{Directory: directory})
	if err := h.Ready(); err == nil || !strings.Contains(err.Error(), directory) {
		t.Errorf("Ready() = %v before the directory exists", err)
	}
	if err := os.Mkdir(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.Ready(); err != nil {
		t.Errorf("Ready() = %v after", err)
	}
	w := httptest.NewRecorder()
	New(Config{Directory: "/absent"}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/x", nil))
	if w.Code == http.StatusOK {
		t.Error("a file from nowhere")
	}
}
