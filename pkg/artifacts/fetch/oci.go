package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// repository opens an OCI set's repository, anonymously; "http://" before the name is for registries without TLS.
func (s *Set) repository(client *http.Client) (*remote.Repository, error) {
	name, plain := strings.CutPrefix(s.OCI, "http://")
	repo, err := remote.NewRepository(name)
	if err != nil {
		return nil, fmt.Errorf("%q is no reference: %w", s.OCI, err)
	}
	if repo.Reference.Reference == "" {
		return nil, fmt.Errorf("%q has no tag or digest", s.OCI)
	}
	repo.PlainHTTP = plain
	repo.Client = &auth.Client{Client: client, Cache: auth.NewCache()}
	return repo, nil
}

// resolveOCI lists the files of an OCI artifact: the layers of its manifest that have a title, as oras pushes them.
// The manifest's digest is checked against what the registry resolved, each layer's against the manifest.
func (c *check) resolveOCI(ctx context.Context, s *Set) ([]artifact, error) {
	brief := *c.client
	brief.Timeout = c.config.StallTimeout.D() // tokens and manifests are small
	repo, err := s.repository(&brief)
	if err != nil {
		return nil, err
	}
	_, text, err := oras.FetchBytes(ctx, repo, repo.Reference.Reference, oras.FetchBytesOptions{MaxBytes: maxChecksums})
	if err != nil {
		return nil, fmt.Errorf("failed to get manifest: %w", registryError(ctx, err))
	}
	if by, ok := repo.Client.(*auth.Client); ok {
		by.Client = c.client // layers may take their time
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(text, &manifest); err != nil {
		return nil, fmt.Errorf("%w: manifest of %s: %w", errMalformed, s.OCI, err)
	}
	scheme := "https"
	if repo.PlainHTTP {
		scheme = "http"
	}
	var list []artifact
	seen := map[string]bool{}
	for _, layer := range manifest.Layers {
		name := layer.Annotations[ocispec.AnnotationTitle]
		if name == "" || len(s.Names) > 0 && !s.named(name) {
			continue
		}
		d, err := parseDigest(string(layer.Digest))
		if err != nil || !validName(name) || seen[name] {
			return nil, fmt.Errorf("%w: layer %q of %s: its name or digest is not accepted", errMalformed, name, s.OCI)
		}
		seen[name] = true
		list = append(list, artifact{
			set: s.Name, name: name, digest: d, client: repo.Client,
			url:     scheme + "://" + repo.Reference.Host() + "/v2/" + repo.Reference.Repository + "/blobs/" + string(d),
			extract: extractable(name) && !strings.HasPrefix(name, "dtbs"), as: path.Join(s.Path, name),
		})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w, of %d layers", errNoMatch, len(manifest.Layers))
	}
	return list, nil
}

// registryError tells what a registry answered in the words of the other sources.
func registryError(ctx context.Context, err error) error {
	var answer *errcode.ErrorResponse
	switch {
	case errors.Is(err, errdef.ErrNotFound):
		return fmt.Errorf("%w: %w", errVanished, err)
	case errors.Is(err, errdef.ErrSizeExceedsLimit):
		return fmt.Errorf("%w: %w", errMalformed, err)
	case errors.As(err, &answer):
		return fmt.Errorf("%w: %w", statusError(answer.StatusCode), err)
	default:
		return transferError(ctx, err)
	}
}
