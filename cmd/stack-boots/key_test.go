package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot/feed"
)

// secretAPI is an API server that has one Secret, and the kubelet that brings its key into a file.
type secretAPI struct {
	file string

	mu      sync.Mutex
	status  int
	secret  corev1.Secret
	asked   []string
	patched string
}

func (a *secretAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type")))
	if a.status != 0 {
		w.WriteHeader(a.status)
		return
	}
	if r.Method == http.MethodPatch {
		text, _ := io.ReadAll(r.Body)
		a.patched = string(text)
		_ = json.Unmarshal(text, &a.secret)
		_ = os.WriteFile(a.file, a.secret.Data["key"], 0o600)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a.secret)
}

// A Secret that the chart has rendered empty gets a key, once; one that has a key, or that cannot be read, is left alone.
func TestKeyIsMadeOnce(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		key    string // in the Secret
		log    string
		made   bool
	}{
		"empty":     {log: "made the key of boots", made: true},
		"filled":    {key: "the key of another pod"},
		"forbidden": {status: http.StatusForbidden, log: "failed to make the key of boots"},
	} {
		t.Run(name, func(t *testing.T) {
			a := &secretAPI{file: filepath.Join(t.TempDir(), "key"), status: test.status}
			a.secret.ResourceVersion = "7"
			if test.key != "" {
				a.secret.Data = map[string][]byte{"key": []byte(test.key)}
			}
			server := httptest.NewServer(a)
			defer server.Close()
			var log lockedBuffer
			k := &keyMaker{
				secret: "boots", file: a.file, config: &rest.Config{Host: server.URL}, namespace: "tink",
				log: slog.New(slog.NewTextHandler(&log, nil)),
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- k.Run(ctx) }()
			testwait.Until(t, "the API was asked", func() bool {
				a.mu.Lock()
				defer a.mu.Unlock()
				return len(a.asked) > 0 && strings.Contains(log.String(), test.log)
			})
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			const path = "/api/v1/namespaces/tink/secrets/boots"
			patched := "PATCH " + path + " application/merge-patch+json"
			if a.asked[0] != "GET "+path || test.made != (len(a.asked) == 2 && a.asked[1] == patched) {
				t.Errorf("asked %q", a.asked)
			}
			if err := feed.CheckKey(a.file); test.made != (err == nil) {
				t.Errorf("the key: %v", err)
			}
			if test.made && !strings.Contains(a.patched, `"resourceVersion":"7"`) {
				t.Errorf("%s: two pods could make a key each", a.patched)
			}
		})
	}
}

// lockedBuffer may be used by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
