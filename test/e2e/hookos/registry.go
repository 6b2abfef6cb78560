package hookos

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// Image is a static program as an image.
type Image struct {
	Name    string // with path and tag, without the registry
	Program string // file
	Args    []string
}

// Serve runs a registry with images in a role's network namespace, until the server that it returns is closed.
func Serve(l *lab.Lab, role string, addr netip.AddrPort, images ...Image) (*http.Server, error) {
	handler := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)))
	pushed := httptest.NewServer(handler)
	defer pushed.Close()
	for _, image := range images {
		made, err := image.make()
		if err != nil {
			return nil, fmt.Errorf("failed to make image %s: %w", image.Name, err)
		}
		tag, err := name.NewTag(pushed.Listener.Addr().String() + "/" + image.Name)
		if err != nil {
			return nil, err
		}
		if err := remote.Write(tag, made); err != nil {
			return nil, fmt.Errorf("failed to push image %s: %w", image.Name, err)
		}
	}
	var listener net.Listener
	if err := l.Do(role, func() (err error) {
		listener, err = net.Listen("tcp", addr.String())
		return err
	}); err != nil {
		return nil, fmt.Errorf("failed to start registry: %w", err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }() // until it is closed
	return server, nil
}

func (i Image) make() (v1.Image, error) {
	content, err := os.ReadFile(i.Program)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	if err := w.WriteHeader(&tar.Header{Name: "program", Mode: 0o755, Size: int64(len(content))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed.Bytes())), nil
	})
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	return mutate.Config(image, v1.Config{Entrypoint: append([]string{"/program"}, i.Args...)})
}
