package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tinkerbell/stack/internal/kube"
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
	namespace    string       // that of the Secret; empty: the pod's own
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

// fill makes a key where the Secret has none. Of two that try at once, the version lets one succeed.
func (k *keyMaker) fill(ctx context.Context) (made bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, keyEvery)
	defer cancel()
	config, err := kube.Config(k.config)
	if err != nil {
		return false, err
	}
	namespace, err := kube.Namespace(k.namespace)
	if err != nil {
		return false, err
	}
	client, err := hardware.CoreClient(config)
	if err != nil {
		return false, fmt.Errorf("failed to reach the Kubernetes API: %w", err)
	}
	var s corev1.Secret
	err = client.Get().Namespace(namespace).Resource("secrets").Name(k.secret).Do(ctx).Into(&s)
	if err != nil || len(s.Data["key"]) > 0 {
		return false, err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"resourceVersion": s.ResourceVersion},
		"data":     map[string][]byte{"key": []byte(rand.Text() + rand.Text())},
	})
	if err != nil {
		return false, err
	}
	err = client.Patch(types.MergePatchType).Namespace(namespace).Resource("secrets").Name(k.secret).Body(patch).
		Do(ctx).Error()
	return err == nil, err
}
