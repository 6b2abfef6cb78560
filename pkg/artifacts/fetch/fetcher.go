package fetch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/internal/strict"
	"github.com/tinkerbell/stack/pkg/artifacts"
)

// Options are what a [Fetcher] has besides its settings; each may be nil.
type Options struct {
	Logger  *slog.Logger
	Metrics *Metrics
	// Client replaces the HTTP client, and with it the proxy of the settings.
	Client *http.Client
}

// Fetcher keeps a volume as its releases have it. It is a task of the daemon, and Once does its work a single time.
type Fetcher struct {
	options Options
	log     *slog.Logger
	metrics *Metrics
	client  *http.Client // of the settings

	mu     sync.Mutex
	config Config
	next   *Config            // what Reload read, until Run takes it over
	stop   context.CancelFunc // ends what Run does by the settings
	sets   map[string]*SetStatus
	active []*progress
	fault  error // of the volume, not of one set
}

// Status is what the fetcher is doing.
type Status struct {
	Volume string      `json:"volume"`
	Fault  string      `json:"fault,omitempty"`
	Sets   []SetStatus `json:"sets"`
}

// SetStatus is how a set is.
type SetStatus struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Served says whether the set's files, of this release or an earlier one, are served.
	Served bool `json:"served"`
	// Error is why the last check failed.
	Error       string     `json:"error,omitempty"`
	LastSuccess *time.Time `json:"lastSuccess,omitempty"`
	// Downloads are those under way.
	Downloads []Download `json:"downloads,omitempty"`
}

// Download is how far a download is; Total is 0 while the server has not said.
type Download struct {
	Artifact string `json:"artifact"`
	Bytes    int64  `json:"bytes"`
	Total    int64  `json:"total,omitempty"`
}

// Parse reads settings in YAML, strictly. The error is of type [strict.Mistakes].
func Parse(text []byte) (Config, error) {
	d := strict.Decoder{Removed: removed}
	var c Config
	d.Decode(text, &c)
	read := d.Mistakes()
	d.Add(c.Validate())
	d.DropAfter(read)
	if mistakes := d.Mistakes(); len(mistakes) > 0 {
		return Config{}, mistakes
	}
	return c, nil
}

// New makes a fetcher.
func New(c Config, o Options) (*Fetcher, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("failed to set up artifacts: %w", err)
	}
	f := &Fetcher{
		options: o, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), metrics: cmp.Or(o.Metrics, NewMetrics(nil)),
		next: &c, stop: func() {}, sets: map[string]*SetStatus{},
	}
	f.adopt(context.Background())
	return f, nil
}

// String names the task.
func (f *Fetcher) String() string { return "artifacts" }

// Directory is what is to be served.
func (f *Fetcher) Directory() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return filepath.Join(f.config.Volume, nameCurrent)
}

// Ready is nil when every set's files are served, be they of the newest release or of the one before.
func (f *Fetcher) Ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var reasons []error
	for _, set := range f.config.Sets {
		switch status := f.sets[set.Name]; {
		case status.Served:
		case status.Error != "":
			reasons = append(reasons, fmt.Errorf("set %s: %s", set.Name, status.Error))
		case f.fault != nil:
			reasons = append(reasons, fmt.Errorf("set %s: %w", set.Name, f.fault))
		default:
			reasons = append(reasons, fmt.Errorf("set %s: %s", set.Name, status.State))
		}
	}
	return errors.Join(reasons...)
}

// Once checks every set, downloads what is missing and switches. The error names each set that failed.
func (f *Fetcher) Once(ctx context.Context) error {
	faults, err := f.check(ctx)
	return f.conclude(ctx, faults, err)
}

// conclude turns a check's outcome into states, metrics and one error.
func (f *Fetcher) conclude(ctx context.Context, faults map[string]error, err error) error {
	f.client.CloseIdleConnections()
	f.mu.Lock()
	f.fault = err
	f.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		f.log.Error("check failed", "volume", f.config.Volume, "state", stateOf(err).String(), "error", err)
	}
	all := []error{err}
	for _, set := range f.config.Sets {
		fault := faults[set.Name]
		if fault != nil {
			f.log.Error("set failed", "set", set.Name, "state", stateOf(fault).String(), "error", fault)
			all = append(all, fmt.Errorf("set %s: %w", set.Name, fault))
		} else if err != nil {
			fault = err
		}
		f.setState(set.Name, stateOf(fault), fault)
		f.metrics.checked(set.Name, stateOf(fault))
	}
	return errors.Join(all...)
}

// Status tells what the fetcher is doing.
func (f *Fetcher) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{Volume: f.config.Volume}
	if f.fault != nil {
		s.Fault = f.fault.Error()
	}
	for _, set := range f.config.Sets {
		one := *f.sets[set.Name]
		for _, p := range f.active {
			if p.Set == set.Name {
				one.Downloads = append(one.Downloads, Download{p.Name, p.done.Load(), p.total.Load()})
			}
		}
		s.Sets = append(s.Sets, one)
	}
	return s
}

// ServeHTTP shows the status, for the admin port.
func (f *Fetcher) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	text, err := json.MarshalIndent(f.Status(), "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // the client has gone
}

func (f *Fetcher) downloader() *downloader {
	return &downloader{
		client: f.client, dir: filepath.Join(f.config.Volume, namePartial), config: f.config, log: f.log,
		metrics: f.metrics,
	}
}

func (f *Fetcher) setState(set string, s State, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	status := f.sets[set]
	status.State = s.String()
	switch s {
	case StateCurrent:
		now := time.Now().UTC().Truncate(time.Second)
		status.Error, status.LastSuccess = "", &now
	case StatePending, StateFetching: // the last fault stays to be read
	default:
		status.Error = err.Error()
	}
	f.metrics.is(set, s)
}

// serving notes what is served.
func (f *Fetcher) serving(m *artifacts.Manifest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	bytes, there := int64(0), map[string]bool{}
	for _, file := range m.Files {
		bytes += file.Size
		there[file.Set+"/"+file.Artifact] = true
	}
	for name, status := range f.sets {
		set, whole := m.Sets[name]
		for a := range set.Artifacts {
			whole = whole && there[name+"/"+a]
		}
		status.Served = whole
	}
	f.metrics.files.Set(float64(len(m.Files)))
	f.metrics.size.Set(float64(bytes))
	f.metrics.switchd.Set(float64(m.Created.Unix()))
}

func (f *Fetcher) begin(a artifact) *progress {
	p := &progress{Set: a.set, Name: a.name}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active = append(f.active, p)
	return p
}

func (f *Fetcher) end(p *progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active = slices.DeleteFunc(f.active, func(other *progress) bool { return other == p })
}

// buffers are for copyTo: a check reads every file that is served.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// copyTo copies until the end, or until ctx is done.
func copyTo(ctx context.Context, w io.Writer, r io.Reader) (int64, error) {
	buffer := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(buffer)
	return io.CopyBuffer(w, reader(func(b []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(b)
	}), buffer[:])
}
