package web

import (
	"bytes"
	"crypto/rand"
	"io"
	"net/http"
	"testing"
)

// An endpoint that answers while the body is still on its way: both arrive whole.
func TestBothWaysAtOnce(t *testing.T) {
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body)
	}))})
	for _, size := range []int{1, 5_000, 200_000, 3 << 20} {
		sent := make([]byte, size)
		_, _ = rand.Read(sent)
		response, err := r.http.Post(r.url+"/echo", "application/octet-stream", bytes.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("got %d bytes of %d, %v", len(got), size, err)
		}
	}
}

// An endpoint that answers without reading the body: the client gets the answer, and the rest of the body is not taken
// for the next request.
func TestAnswerBeforeTheBody(t *testing.T) {
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/upload" {
			t.Errorf("the endpoint saw %s %s", r.Method, r.URL)
		}
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	}))})
	body := bytes.Repeat([]byte("GET /victim HTTP/1.1\r\nHost: h\r\n\r\n"), 2000)
	for range 20 {
		response, err := r.http.Post(r.url+"/upload", "text/plain", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("got %s", response.Status)
		}
	}
}
