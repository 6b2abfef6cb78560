package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/hardware"
)

// keyEvery is how often it is looked whether there is a key.
const keyEvery = 10 * time.Second

// keyMaker puts a key into a Secret that has none: the chart renders the Secret empty, so that each render is the same.
// It needs the verbs get and patch on that Secret. It is a daemon.Task.
type keyMaker struct {
	secret, file string       // the kubelet brings what is in the Secret into the file
	config       *rest.Config // nil: the pod's service account
	namespaces   []string     // that of the Secret; empty: the pod's own
	log          *slog.Logger
}

// Ready implements daemon.Task.
func (*keyMaker) Ready() error { return nil }

// String implements daemon.Task.
func (*keyMaker) String() string { return "key of boots" }

// Run implements daemon.Task.
func (k *keyMaker) Run(ctx context.Context) error {
	ticker := time.NewTicker(keyEvery)
	defer ticker.Stop()
	for told := false; ctx.Err() == nil; {
		if feed.CheckKey(k.file) != nil {
			switch made, err := k.fill(ctx); {
			case made:
				k.log.Info("made the key of boots", "secret", k.secret)
			case err != nil && !told && ctx.Err() == nil:
				told = true
				k.log.Warn("failed to make the key of boots", "secret", k.secret, "error", err.Error())
			}
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return nil
}

// secret is the part of a Secret that matters here.
type secret struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Data map[string][]byte `json:"data"`
}

// fill makes a key where the Secret has none. Of two that try at once, the version lets one succeed.
func (k *keyMaker) fill(ctx context.Context) (made bool, err error) {
	config, namespaces, err := hardware.Connect(k.config, k.namespaces)
	if err != nil {
		return false, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return false, fmt.Errorf("failed to reach the Kubernetes API: %w", err)
	}
	client.Timeout = keyEvery
	where := fmt.Sprintf("%s/api/v1/namespaces/%s/secrets/%s", config.Host, namespaces[0], k.secret)
	var s secret
	text, err := ask(ctx, client, http.MethodGet, where, nil)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil || len(s.Data["key"]) > 0 {
		return false, err
	}
	s.Data = map[string][]byte{"key": []byte(rand.Text() + rand.Text())}
	text, err = json.Marshal(s)
	if err == nil {
		_, err = ask(ctx, client, http.MethodPatch, where, text)
	}
	return err == nil, err
}

// ask asks the Kubernetes API.
func ask(ctx context.Context, client *http.Client, method, where string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, where, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/merge-patch+json")
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("failed to reach the Kubernetes API: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("failed to %s the Secret: the API answers %s", method, response.Status)
	}
	return answer, err
}
