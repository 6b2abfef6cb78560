package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// list fetches a small text, such as checksum.txt, with the same patience.
func (d *downloader) list(ctx context.Context, set, from string) (text []byte, err error) {
	err = d.persist(ctx, &progress{Set: set, Name: "checksum.txt"}, func() error {
		text, err = d.listOnce(ctx, from)
		return err
	})
	return text, err
}

func (d *downloader) listOnce(ctx context.Context, from string) ([]byte, error) {
	ctx, watch := d.config.watch(ctx)
	defer watch.end()
	answer, err := d.get(ctx, nil, from, http.Header{"Cache-Control": {"no-cache"}})
	if errors.Is(err, errVanished) {
		return nil, fmt.Errorf("%w (HookOS publishes a list since 0.9)", err)
	}
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	watch.fed()
	text, err := io.ReadAll(io.LimitReader(watch.reader(answer.Body), maxChecksums+1))
	if err != nil {
		return nil, transferError(ctx, err)
	}
	if len(text) > maxChecksums {
		return nil, fmt.Errorf("%w: more than %d bytes", errMalformed, maxChecksums)
	}
	return text, nil
}
