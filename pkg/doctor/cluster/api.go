package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// API is the Kubernetes API as a pod's service account may ask it: for objects, and for nothing else.
type API struct {
	Base   string // such as https://10.96.0.1:443
	Token  func() (string, error)
	Client *http.Client
}

// What a question may end with.
var (
	errDenied  = errors.New("the service account may not read them")
	errMissing = errors.New("there is no such thing")
)

// mostAnswer is how much of an answer is read, in bytes.
const mostAnswer = 64 << 20

// get reads an object, or a list of them.
func (a *API) get(ctx context.Context, path string, query url.Values, out any) error {
	u := strings.TrimSuffix(a.Base, "/") + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u, http.NoBody)
	if err != nil {
		return err
	}
	token, err := a.Token()
	if err != nil {
		return fmt.Errorf("failed to read the service account's token: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "stack-doctor")
	response, err := a.Client.Do(request)
	if err != nil {
		return fmt.Errorf("failed to ask Kubernetes: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return errDenied
	case http.StatusNotFound:
		return errMissing
	default:
		return fmt.Errorf("failed to read %s: status %d", path, response.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, mostAnswer)).Decode(out); err != nil {
		return fmt.Errorf("failed to read %s: %w", path, err)
	}
	return nil
}

// list reads all objects of a kind, a page at a time.
func list[T any](ctx context.Context, a *API, path, selector string) (all []T, err error) {
	const page = "500"
	query := url.Values{"limit": {page}}
	if selector != "" {
		query.Set("labelSelector", selector)
	}
	for {
		var some struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		if err := a.get(ctx, path, query, &some); err != nil {
			return nil, err
		}
		if all = append(all, some.Items...); some.Metadata.Continue == "" {
			return all, nil
		}
		query.Set("continue", some.Metadata.Continue)
	}
}
