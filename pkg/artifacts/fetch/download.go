package fetch

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/internal/redirect"
)

// artifact is one thing to fetch.
type artifact struct {
	set    string
	name   string
	url    string
	digest digest
	// extract says to take out the files instead of serving the artifact; as is what it is served as otherwise.
	extract bool
	as      string
	client  doer // nil is the ordinary one
}

// doer makes requests: an HTTP client, or one that also gets itself a registry's tokens.
type doer interface {
	Do(*http.Request) (*http.Response, error)
}

// progress is how far a download is.
type progress struct {
	Set   string
	Name  string
	done  atomic.Int64
	total atomic.Int64
}

// downloader fetches artifacts into a directory of partial files.
type downloader struct {
	client  *http.Client
	dir     string
	config  Config
	log     *slog.Logger
	metrics *Metrics
}

// newClient makes the client of all downloads, by way of a proxy; without one the environment's, as everywhere.
func newClient(proxy string) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if by, err := url.Parse(proxy); proxy != "" && err == nil {
		transport.Proxy = http.ProxyURL(by)
	}
	transport.DisableCompression = true // ranges and digests are of the bytes as they are
	return &http.Client{Transport: transport, CheckRedirect: redirect.Secure}
}

func (d *downloader) path(a artifact) string {
	// Two artifacts with the same bytes are still two downloads.
	name := sha256.Sum256([]byte(a.set + "/" + a.name))
	return filepath.Join(d.dir, strings.ReplaceAll(string(a.digest), ":", "-")+"-"+hex.EncodeToString(name[:4]))
}

// errTransfer is a transfer that broke.
var errTransfer = errors.New("transfer broke")

// fetch downloads an artifact, and returns the path of the whole, verified, durable file.
func (d *downloader) fetch(ctx context.Context, a artifact, p *progress) (string, error) {
	return d.path(a), d.persist(ctx, p, func() error { return d.attempt(ctx, a, p) })
}

// persist attempts a download until it is done, until the bytes were wrong twice, or until as many attempts in a row as
// the settings say brought nothing.
func (d *downloader) persist(ctx context.Context, p *progress, attempt func() error) error {
	wrong, idle, retry := 0, 0, d.config.backoff()
	for {
		before := p.done.Load()
		err := attempt()
		if err == nil {
			return nil
		}
		if errors.Is(err, errDigest) {
			wrong++
		} else if p.done.Load() > before {
			idle = 0
			retry.Reset()
		}
		idle++
		if ctx.Err() != nil || wrong == 2 || idle > d.config.Attempts || !retryable(err) {
			return fmt.Errorf("failed to download %s: %w", p.Name, err)
		}
		d.metrics.retries.WithLabelValues(p.Set, stateOf(err).String()).Inc()
		pause := retry.Next()
		d.log.Warn("download interrupted", "set", p.Set, "artifact", p.Name, "error", err, "bytes", p.done.Load(),
			"retry_seconds", pause.Seconds())
		select {
		case <-ctx.Done():
			return fmt.Errorf("failed to download %s: %w", p.Name, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// retryable says whether the next attempt may fare better.
func retryable(err error) bool {
	var status statusError
	if errors.As(err, &status) {
		return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
	}
	switch stateOf(err) {
	case StateFull, StateReadOnly:
		return false
	default:
		return !errors.Is(err, errVanished) && !errors.Is(err, errTooLarge) && !errors.Is(err, redirect.ErrRefused)
	}
}

// attempt goes on with the partial file, or begins it. Whether the server still has what it had then, the digest shows.
func (d *downloader) attempt(ctx context.Context, a artifact, p *progress) error {
	f, err := os.OpenFile(d.path(a), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return fmt.Errorf("failed to open partial file: %w", err)
	}
	defer f.Close()
	sum := newHash(a.digest)
	have, err := io.Copy(sum, f)
	if err != nil {
		return fmt.Errorf("failed to read partial file: %w", err)
	}
	p.done.Store(have)
	if have > 0 && sumOf(sum, a.digest) == a.digest { // killed between the last byte and the switch
		return f.Sync()
	}
	if err := d.transfer(ctx, a, f, sum, have, p); err != nil {
		return err
	}
	if sumOf(sum, a.digest) != a.digest {
		d.discard(a)
		p.done.Store(0)
		return fmt.Errorf("%w: want %s, got %s of %s", errDigest, a.digest, sumOf(sum, a.digest), size(p.total.Load()))
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("failed to sync %s: %w", a.name, err)
	}
	return nil
}

// transfer asks for the bytes from have on, and writes what comes.
func (d *downloader) transfer(
	ctx context.Context, a artifact, f *os.File, sum hash.Hash, have int64, p *progress,
) error {
	ctx, watch := d.config.watch(ctx)
	defer watch.end()
	header := http.Header{}
	if have > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(have, 10)+"-")
	}
	answer, err := d.get(ctx, a.client, a.url, header)
	if errors.Is(err, statusError(http.StatusRequestedRangeNotSatisfiable)) { // we have more than there is
		d.discard(a)
		return fmt.Errorf("%w: %w", errTransfer, err)
	}
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	watch.fed()
	if answer.StatusCode == http.StatusOK {
		have = 0
		if err := d.restart(f, sum, p); err != nil {
			return err
		}
	} else {
		if !strings.HasPrefix(answer.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(have, 10)+"-") {
			d.discard(a)
			return fmt.Errorf("%w: asked for byte %d, got range %q", errTransfer, have, answer.Header.Get("Content-Range"))
		}
		watch.have.Store(have)
		d.log.Info("download resumed", "set", a.set, "artifact", a.name, "bytes", have)
	}
	if answer.ContentLength >= 0 {
		p.total.Store(have + answer.ContentLength)
		if have+answer.ContentLength > int64(d.config.MaxSize) {
			return fmt.Errorf("%w: %s", errTooLarge, size(have+answer.ContentLength))
		}
		if err := enoughSpace(d.dir, answer.ContentLength); err != nil {
			return err
		}
	}
	room := int64(d.config.MaxSize) - have
	out := &tee{downloader: d, progress: p, file: f, sum: sum, told: time.Now()}
	n, err := io.CopyBuffer(out, io.LimitReader(watch.reader(answer.Body), room+1), make([]byte, 256<<10))
	switch {
	case errors.Is(err, errRead):
		return transferError(ctx, err)
	case err != nil:
		return fmt.Errorf("failed to write partial file: %w", err)
	case n > room:
		d.discard(a)
		return errTooLarge
	}
	p.total.Store(have + n)
	return nil
}

// get makes a request. Every answer but 200, and 206 where a range was asked for, is an error.
func (d *downloader) get(ctx context.Context, by doer, from string, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to make request: %w", redacted(err))
	}
	request.Header = header
	if by == nil {
		by = d.client
	}
	answer, err := by.Do(request)
	if err != nil {
		return nil, transferError(ctx, err)
	}
	status := statusError(answer.StatusCode)
	switch {
	case status == http.StatusOK, status == http.StatusPartialContent && header.Get("Range") != "":
		return answer, nil
	case status == http.StatusNotFound, status == http.StatusGone:
		err = fmt.Errorf("%w: %w", errVanished, status)
	default:
		err = status
	}
	_ = answer.Body.Close()
	return nil, err
}

// restart forgets the partial file's bytes.
func (d *downloader) restart(f *os.File, sum hash.Hash, p *progress) error {
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("failed to empty partial file: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("failed to rewind partial file: %w", err)
	}
	sum.Reset()
	p.done.Store(0)
	return nil
}

func (d *downloader) discard(a artifact) {
	if err := os.Remove(d.path(a)); err != nil {
		d.log.Warn("failed to remove partial file", "artifact", a.name, "error", err)
	}
}

// transferError says why a transfer ended, and hides a password in its URL.
func transferError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %w", errTransfer, cause)
	}
	if errors.Is(err, redirect.ErrRefused) {
		return redacted(err)
	}
	return fmt.Errorf("%w: %w", errTransfer, redacted(err))
}

// redacted takes the user's name and password out of an error of net/http.
func redacted(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		if u, parseErr := url.Parse(failed.URL); parseErr == nil {
			failed.URL = u.Redacted()
		}
	}
	return err
}

func newHash(d digest) hash.Hash {
	if strings.HasPrefix(string(d), "sha256:") {
		return sha256.New()
	}
	return sha512.New()
}

func sumOf(h hash.Hash, d digest) digest {
	algorithm, _, _ := strings.Cut(string(d), ":")
	return digest(algorithm + ":" + hex.EncodeToString(h.Sum(nil)))
}

// tellEvery is how often a download that goes on is logged.
const tellEvery = 10 * time.Second

// tee writes to the file and the hash, and counts.
type tee struct {
	*downloader
	*progress
	file *os.File
	sum  hash.Hash
	told time.Time
}

func (t *tee) Write(p []byte) (int, error) {
	n, err := t.file.Write(p)
	t.sum.Write(p[:n])
	done := t.done.Add(int64(n))
	t.metrics.bytes.WithLabelValues(t.Set).Add(float64(n))
	if now := time.Now(); now.Sub(t.told) >= tellEvery {
		t.told = now
		t.log.Info("downloading", "set", t.Set, "artifact", t.Name, "bytes", done, "total", t.total.Load())
	}
	return n, err
}

// enoughSpace refuses a download that cannot fit before it begins.
func enoughSpace(dir string, need int64) error {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return fmt.Errorf("failed to ask for free space: %w", err)
	}
	if free := int64(stat.Bavail) * stat.Bsize; need > free {
		return fmt.Errorf("%w: need %s, have %s", errNoSpace, size(need), size(free))
	}
	return nil
}

// size writes a number of bytes for people.
func size(n int64) string {
	if n < 1<<20 {
		return strconv.FormatInt(n, 10) + " bytes"
	}
	return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
}
