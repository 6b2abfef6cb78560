package edge_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// fosite is the issuer of test/e2e/issuer, a program of its own, as provider.
type fosite struct {
	client *http.Client
	base   string
}

// startFosite starts it in a namespace of its own.
func startFosite(t *testing.T, s *site, program string, identity issued) *fosite {
	t.Helper()
	s.write(t, "issuer/tls.crt", identity.cert)
	s.write(t, "issuer/tls.key", identity.key)
	at := lab.HegelIP.String()
	if _, err := s.Start(lab.Process{
		Name: "issuer", Role: lab.RoleHegel, Path: program, Watch: true, Args: []string{
			"-listen", at + ":443", "-control", at + ":8081", "-issuer", issuerURL,
			"-certificate", filepath.Join(s.dir, "issuer/tls.crt"), "-key", filepath.Join(s.dir, "issuer/tls.key"),
		},
	}); err != nil {
		t.Fatal(err)
	}
	f := &fosite{client: s.Client(lab.RoleHegel), base: "http://" + at + ":8081"}
	s.await(t, "the issuer's start", func() bool {
		_, err := f.ask(http.MethodGet, "/asked", nil)
		return err == nil
	})
	return f
}

func (f *fosite) ask(method, path string, body []byte) (string, error) {
	request, err := http.NewRequest(method, f.base+path, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	answer, err := f.client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, answer.Status, text)
	}
	return string(text), err
}

func (f *fosite) sign(claims map[string]any) (string, error) {
	text, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	return f.ask(http.MethodPost, "/sign", text)
}

func (f *fosite) rotate(t *testing.T) {
	t.Helper()
	if _, err := f.ask(http.MethodPost, "/rotate", nil); err != nil {
		t.Fatal(err)
	}
}

func (f *fosite) fail(down bool) {
	state := map[bool]string{true: "on", false: "off"}[down]
	_, _ = f.ask(http.MethodPost, "/down/"+state, nil) // what follows shows whether it was heard
}

func (f *fosite) keysAsked() int {
	text, _ := f.ask(http.MethodGet, "/asked", nil)
	n, _ := strconv.Atoi(text)
	return n
}
