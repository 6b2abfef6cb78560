// Package installer plays the operating system installer that Tinkerbell boots: it sends syslog lines, reads its
// metadata, asks Tink for its workflow, streams the image that the workflow names and checks it. Every service is
// reached through the pod, at the address that Smee's kernel command line names.
//
// The modern Tinkerbell's workflow is run by its own agent, which the installer downloads and starts; the installer is
// the agent's container runtime. With the classic services the installer speaks to Tink Server itself.
//
// The same code runs as the init of the initramfs (see the program in init) and inside the Go machine.
package installer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/tinkerbell/stack/test/e2e/progress"
	"github.com/tinkerbell/stack/test/e2e/tink"
)

// The installer's steps, in order.
const (
	StepSyslog   = "syslog"
	StepMetadata = "metadata"
	StepGRPC     = "grpc"
	StepArtifact = "artifact"
	StepPowerOff = "power-off"
)

// Mark begins a line of a serial console that holds a [Report] as JSON.
const Mark = "@@step "

// Report tells how a step went.
type Report struct {
	Step   string            `json:"step"`
	OK     bool              `json:"ok"`
	Detail string            `json:"detail"`
	Data   map[string]string `json:"data,omitempty"`
}

// Line is the report as a line for a serial console.
func (r Report) Line() string {
	text, err := json.Marshal(r)
	if err != nil {
		return Mark + `{"ok":false,"detail":"failed to encode report"}`
	}
	return Mark + string(text)
}

// ParseLine finds a report in a line of a serial console, where kernel messages may precede it.
func ParseLine(line []byte) (Report, bool) {
	_, text, ok := bytes.Cut(line, []byte(Mark))
	var report Report
	if !ok || json.Unmarshal(text, &report) != nil {
		return Report{}, false
	}
	return report, true
}

// Config is what an installer is told.
type Config struct {
	WorkerID string           // worker_id=
	HWAddr   net.HardwareAddr // hw_addr=
	Syslog   string           // syslog_host=, with the port
	Tink     string           // grpc_authority=
	Metadata string           // base URL, metadata=; default: port 50061 of Tink's address (Hegel); empty: no such step
	Agent    string           // URL of Tinkerbell's agent, agent=; empty: the installer speaks to Tink Server
	// Of HookOS: tink_worker_image=, where it is given, insecure_registries=, tinkerbell_tls=, tinkerbell_insecure_tls=.
	WorkerImage      string
	Registries       []string
	TLS, InsecureTLS string
	Addr             netip.Addr    // of this machine, as DHCP gave it
	Hostname         string        // likewise
	Attempts         time.Duration // how long a step that failed tries again; default 10 s
	Dial             func(ctx context.Context, network, addr string) (net.Conn, error)
	Report           func(Report)
	// Start starts a program in the background, and returns what ends it.
	Start func(path string, args []string, output io.Writer) (end func() error, err error)
}

// ParseCommandLine reads what Smee put on the kernel's command line.
func ParseCommandLine(line string) (Config, error) {
	values := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		if name, value, ok := strings.Cut(word, "="); ok {
			values[name] = value
		}
	}
	var faults []error
	for _, name := range []string{"worker_id", "hw_addr", "syslog_host", "grpc_authority"} {
		if values[name] == "" {
			faults = append(faults, fmt.Errorf("it has no %s=", name))
		}
	}
	mac, err := net.ParseMAC(values["hw_addr"])
	if values["hw_addr"] != "" && err != nil {
		faults = append(faults, err)
	}
	host, _, err := net.SplitHostPort(values["grpc_authority"])
	if values["grpc_authority"] != "" && err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return Config{}, fmt.Errorf("failed to parse kernel command line: %w", err)
	}
	config := Config{
		WorkerID: values["worker_id"],
		HWAddr:   mac,
		Syslog:   net.JoinHostPort(values["syslog_host"], "514"),
		Tink:     values["grpc_authority"],
		Metadata: cmp.Or(values["metadata"], "http://"+net.JoinHostPort(host, "50061")),
		Agent:    values["agent"],

		WorkerImage: values["tink_worker_image"],
		Registries:  strings.FieldsFunc(values["insecure_registries"], func(r rune) bool { return r == ',' }),
		TLS:         values["tinkerbell_tls"],
		InsecureTLS: values["tinkerbell_insecure_tls"],
	}
	return config, nil
}

// IPv6 tells whether the services have IPv6 addresses.
func (c Config) IPv6() bool {
	at, err := netip.ParseAddrPort(c.Tink)
	return err == nil && at.Addr().Is6()
}

// run is one installation.
type run struct {
	Config
	client     *http.Client
	workflowID string
	action     tink.Action
}

// step does something and says what it was.
type step struct {
	name  string
	quiet time.Duration // how long nothing may move in it
	do    func(context.Context, *progress.Watch) (detail string, data map[string]string, err error)
}

// Run does the steps up to the artifact. Each is reported; the first that fails ends the run.
func Run(ctx context.Context, c Config) error {
	if c.Attempts == 0 {
		c.Attempts = 10 * time.Second
	}
	r := &run{Config: c, client: &http.Client{Transport: &http.Transport{DialContext: c.Dial}}}
	defer r.client.CloseIdleConnections()
	steps := []step{
		{StepSyslog, 5 * time.Second, r.syslog},
		{StepMetadata, 10 * time.Second, r.metadata},
		{StepGRPC, 10 * time.Second, r.workflow},
		{StepArtifact, 30 * time.Second, r.artifact},
	}
	if c.Agent != "" {
		a := &agent{run: r, engine: newEngine()}
		defer a.close()
		steps[2].do, steps[3].do = a.workflow, a.artifact
		steps[2].quiet = time.Minute // a large program, on a processor that is emulated
	}
	for _, step := range steps {
		if step.name == StepMetadata && c.Metadata == "" {
			continue
		}
		detail, data, err := r.again(ctx, step)
		if err != nil {
			c.Report(Report{Step: step.name, Detail: err.Error()})
			return fmt.Errorf("%s: %w", step.name, err)
		}
		c.Report(Report{Step: step.name, OK: true, Detail: detail, Data: data})
		_ = r.say(ctx, "done: "+step.name) // lines for the log: nothing depends on them
	}
	return nil
}

// again does a step until it works, but starts no new attempt later than c.Attempts after the first one failed.
func (r *run) again(ctx context.Context, s step) (string, map[string]string, error) {
	const pause = 500 * time.Millisecond
	var failed time.Time
	for {
		attempt, watch := progress.Begin(ctx, progress.Patience{Quiet: s.quiet})
		detail, data, err := s.do(attempt, watch)
		err = watch.Why(attempt, err)
		watch.End()
		if failed.IsZero() {
			failed = time.Now()
		}
		if err == nil || ctx.Err() != nil || time.Since(failed)+pause > r.Attempts {
			return detail, data, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (r *run) syslog(ctx context.Context, _ *progress.Watch) (string, map[string]string, error) {
	text := "machine " + r.HWAddr.String() + " at " + r.Addr.String() + " begins"
	for range 2 { // a datagram may be lost
		if err := r.say(ctx, text); err != nil {
			return "", nil, err
		}
	}
	return "sent to " + r.Syslog, map[string]string{"text": text}, nil
}

// say sends a line as RFC 3164 has it, facility local0, severity notice.
func (r *run) say(ctx context.Context, text string) error {
	conn, err := r.Dial(ctx, "udp", r.Syslog)
	if err != nil {
		return fmt.Errorf("failed to reach %s/udp: %w", r.Syslog, err)
	}
	defer func() { _ = conn.Close() }()
	line := fmt.Sprintf("<133>%s installer[1]: %s", time.Now().UTC().Format(time.Stamp), text)
	if _, err := conn.Write([]byte(line)); err != nil {
		return fmt.Errorf("failed to send syslog line: %w", err)
	}
	return nil
}

func (r *run) metadata(ctx context.Context, watch *progress.Watch) (string, map[string]string, error) {
	data := map[string]string{}
	for _, name := range []string{"instance-id", "hostname", "public-ipv4"} {
		text, err := r.get(ctx, watch, r.Metadata+"/2009-04-04/meta-data/"+name)
		if err != nil {
			return "", nil, err
		}
		data[name] = text
	}
	for name, own := range map[string]string{
		"instance-id": r.HWAddr.String(), "hostname": r.Hostname, "public-ipv4": r.Addr.String(),
	} {
		if name == "hostname" && own == "" {
			continue // DHCPv6 tells none
		}
		if data[name] != own {
			return "", nil, fmt.Errorf("metadata is another machine's: %s is %q, mine is %q", name, data[name], own)
		}
	}
	return fmt.Sprintf("I am known as %s, %s", data["hostname"], data["public-ipv4"]), data, nil
}

// get reads a small document.
func (r *run) get(ctx context.Context, watch *progress.Watch, url string) (string, error) {
	response, err := r.open(ctx, url)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(watch.Reader(response.Body), 1<<20))
	if err != nil {
		return "", fmt.Errorf("failed to read %s: %w", url, err)
	}
	return string(body), nil
}

func (r *run) open(ctx context.Context, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(response.Body, 300))
		_ = response.Body.Close()
		return nil, fmt.Errorf("%s answers %s: %s", url, response.Status, bytes.TrimSpace(said))
	}
	return response, nil
}

func (r *run) dialTink() (*tink.Client, error) {
	return tink.Dial(r.Tink, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return r.Dial(ctx, "tcp", addr)
	}))
}

func (r *run) workflow(ctx context.Context, watch *progress.Watch) (string, map[string]string, error) {
	client, err := r.dialTink()
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = client.Close() }()
	contexts, err := client.Contexts(ctx, r.WorkerID)
	if err != nil {
		return "", nil, err
	}
	if len(contexts) == 0 {
		return "", nil, fmt.Errorf("no workflow for worker %s", r.WorkerID)
	}
	r.workflowID = contexts[0].WorkflowID
	watch.Moved("workflow " + r.workflowID + " is named")
	actions, err := client.Actions(ctx, r.workflowID)
	if err != nil {
		return "", nil, err
	}
	if len(actions) == 0 {
		return "", nil, fmt.Errorf("workflow %s has no action", r.workflowID)
	}
	r.action = actions[0]
	watch.Moved("its actions are known")
	if r.action.WorkerID != r.WorkerID {
		return "", nil, fmt.Errorf("workflow %s is for worker %s", r.workflowID, r.action.WorkerID)
	}
	if err := r.tell(ctx, client, tink.Running, 0); err != nil {
		return "", nil, err
	}
	detail := fmt.Sprintf("workflow %s: %s", r.workflowID, r.action.Name)
	return detail, map[string]string{"workflow": r.workflowID}, nil
}

func (r *run) tell(ctx context.Context, client *tink.Client, state tink.State, took time.Duration) error {
	return client.Report(ctx, tink.ActionStatus{
		WorkflowID: r.workflowID, TaskName: r.action.TaskName, ActionName: r.action.Name, WorkerID: r.WorkerID,
		Status: state, Seconds: int64(took / time.Second), Message: "by the lab's installer",
	})
}

// artifact streams the image that the workflow's action names, and tells Tink.
func (r *run) artifact(ctx context.Context, watch *progress.Watch) (string, map[string]string, error) {
	detail, data, took, err := r.stream(ctx, watch, r.action.Environment)
	if err != nil {
		return "", nil, err
	}
	client, err := r.dialTink()
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = client.Close() }()
	return detail, data, r.tell(ctx, client, tink.Success, took)
}

// stream reads the image that an action names and checks it, as Tinkerbell's image2disk does.
func (r *run) stream(ctx context.Context, watch *progress.Watch, environment []string) (
	detail string, data map[string]string, took time.Duration, err error,
) {
	var url, want string
	for _, variable := range environment {
		switch name, value, _ := strings.Cut(variable, "="); name {
		case "IMG_URL":
			url = value
		case "IMG_SHA512":
			want = value
		}
	}
	if url == "" || want == "" {
		return "", nil, 0, errors.New("the action has no IMG_URL or no IMG_SHA512")
	}
	start := time.Now()
	response, err := r.open(ctx, url)
	if err != nil {
		return "", nil, 0, err
	}
	defer func() { _ = response.Body.Close() }()
	hash := sha512.New()
	n, err := io.Copy(hash, watch.Reader(response.Body))
	if err != nil {
		return "", nil, 0, fmt.Errorf("failed to read %s after %d bytes: %w", url, n, err)
	}
	took = time.Since(start)
	if got := hex.EncodeToString(hash.Sum(nil)); got != want {
		return "", nil, 0, fmt.Errorf("%s: SHA-512 is %s, not %s, of %d bytes", url, got, want, n)
	}
	detail = fmt.Sprintf("%.1f MiB in %.1f s, SHA-512 is right", float64(n)/(1<<20), took.Seconds())
	return detail, map[string]string{"bytes": fmt.Sprint(n)}, took, nil
}
