package fetch

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// list fetches a small text, such as checksum.txt, with the same patience.
func (d *downloader) list(ctx context.Context, set, from string) ([]byte, error) {
	pause := d.config.backoff()
	for attempt := 1; ; attempt++ {
		text, err := d.listOnce(ctx, from)
		if err == nil {
			return text, nil
		}
		if ctx.Err() != nil || attempt >= d.config.Attempts || !retryable(err) {
			return nil, fmt.Errorf("failed to get checksum.txt: %w", err)
		}
		d.metrics.retried(set, err)
		pause.Wait(ctx)
	}
}

func (d *downloader) listOnce(ctx context.Context, from string) ([]byte, error) {
	ctx, watch := d.config.watch(ctx)
	defer watch.end()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to make request: %w", redacted(err))
	}
	request.Header.Set("Cache-Control", "no-cache")
	answer, err := d.client.Do(request)
	if err != nil {
		return nil, transferError(ctx, err)
	}
	defer answer.Body.Close()
	watch.fed()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return nil, fmt.Errorf("%w: %w (HookOS publishes a list since 0.9)", errVanished, statusError(answer.StatusCode))
	default:
		return nil, statusError(answer.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(watch.reader(answer.Body), maxChecksums+1))
	if err != nil {
		return nil, transferError(ctx, err)
	}
	if len(text) > maxChecksums {
		return nil, fmt.Errorf("%w: more than %d bytes", errMalformed, maxChecksums)
	}
	return text, nil
}
