package fetch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// registry is an OCI registry of the tests: one repository, with tokens as the public ones have them.
type registry struct {
	*httptest.Server
	mu       sync.Mutex
	manifest []byte
	blobs    map[string][]byte
	tokens   int
	cut      bool // breaks the next blob off
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func newRegistry(t *testing.T) *registry {
	r := &registry{blobs: map[string][]byte{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *registry) push(layers map[string][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []map[string]any{{"mediaType": "x/untitled", "digest": digestOf(nil), "size": 0}}
	for name, body := range layers {
		r.blobs[digestOf(body)] = body
		list = append(list, map[string]any{
			"mediaType": "application/octet-stream", "digest": digestOf(body), "size": len(body),
			"annotations": map[string]string{"org.opencontainers.image.title": name},
		})
	}
	r.manifest, _ = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": map[string]any{"mediaType": "x/y", "digest": digestOf([]byte("{}")), "size": 2}, "layers": list,
	})
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if req.URL.Path == "/token" {
		r.tokens++
		_, _ = w.Write([]byte(`{"token":"pass"}`))
		return
	}
	if req.Header.Get("Authorization") != "Bearer pass" {
		w.Header().Set("Www-Authenticate", `Bearer realm="`+r.URL+`/token",service="r",scope="repository:os/captain:pull"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	reference, isManifest := strings.CutPrefix(req.URL.Path, "/v2/os/captain/manifests/")
	if isManifest && (reference == "v1" || reference == digestOf(r.manifest)) {
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Header().Set("Docker-Content-Digest", digestOf(r.manifest))
		if req.Method != http.MethodHead {
			_, _ = w.Write(r.manifest)
		}
		return
	}
	blob, ok := r.blobs[strings.TrimPrefix(req.URL.Path, "/v2/os/captain/blobs/")]
	if !ok {
		http.NotFound(w, req)
		return
	}
	if r.cut {
		r.cut = false
		blob = blob[:len(blob)/2]
	}
	_, _ = w.Write(blob)
}

func TestOCI(t *testing.T) {
	r := newRegistry(t)
	layers := map[string][]byte{
		"vmlinuz": noise(1, 5000), "captain.tar.gz": archive(t, reg("initramfs", "init")), "readme.md": []byte("text"),
	}
	r.push(layers)
	r.cut = true
	reference := "http://" + strings.TrimPrefix(r.URL, "http://") + "/os/captain:v1"
	f := newFetcher(t, configFor(t.TempDir(), Set{Name: "captain", OCI: reference, Names: []string{"vmlinuz", "*.tar.gz"}}))
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"vmlinuz": string(layers["vmlinuz"]), "initramfs": "init"}
	if diff := cmp.Diff(want, served(t, f)); diff != "" {
		t.Errorf("served differs (-want +got):\n%s", diff)
	}
	if r.tokens == 0 {
		t.Error("no token was asked for")
	}
	// The tag moves on to what is not accepted: the old is served.
	for title, state := range map[string]State{"../evil": StateInvalid, "other": StateInvalid} {
		r.push(map[string][]byte{title: []byte("x")})
		if err := f.Once(t.Context()); stateOf(err) != state {
			t.Errorf("%s: got %v, want %v", title, err, state)
		}
	}
	for what, set := range map[string]Set{
		"no such tag":  {OCI: strings.Replace(reference, ":v1", ":v2", 1)},
		"no such host": {OCI: "http://127.0.0.1:1/os/captain:v1"},
	} {
		set.Name = "captain"
		f := newFetcher(t, configFor(t.TempDir(), set))
		if err := f.Once(t.Context()); stateOf(err) != StateUnavailable {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if diff := cmp.Diff(want, served(t, f)); diff != "" {
		t.Errorf("served differs (-want +got):\n%s", diff)
	}
	for _, bad := range []Set{{OCI: "registry"}, {OCI: "r.example.org/a"}, {OCI: "r.example.org/a:v", URL: "http://x"}} {
		bad.Name = "captain"
		c := configFor(t.TempDir(), bad)
		if c.Validate() == nil {
			t.Errorf("accepted %+v", bad)
		}
	}
}
