package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/pkg/doctor/ipxe"
	"github.com/tinkerbell/stack/pkg/doctor/web"
)

const (
	// mostScript is the longest script that is read, in bytes.
	mostScript = 256 << 10
	// mostURLs is how many URLs of scripts are asked for in all, and mostScripts how many scripts are read.
	mostURLs, mostScripts = 20, 5
	// begin is how much of a file is read, in bytes.
	begin = 1024
	// excerpt is how much of a page is shown, in bytes.
	excerpt = 40
)

// reading is the way through scripts.
type reading struct {
	*chain
	seen    []string
	asked   int
	unknown []string
	loads   bool // something is loaded that could be a kernel
	ends    []string
	agent   agent
}

// agent is what the kernel's arguments tell the agent.
type agent struct {
	grpc, syslog string
	tls          bool
	host         netip.Addr // that the script came from
}

// scripts reads the script that iPXE is told, and asks for all that it names.
func (c *chain) scripts(ctx context.Context) {
	if c.script == nil {
		if c.boot != nil && c.ipxeAsked() {
			c.find("no-script", "nobody tells iPXE (user class iPXE or Tinkerbell) of a script: the loader has to bring "+
				"its own")
		}
		return
	}
	u := c.script.URL()
	if u == nil { // a name at the next server: iPXE asks for it by TFTP
		u = &url.URL{Scheme: "tftp", Host: c.script.Next.String(), Path: "/" + c.script.File}
	}
	r := &reading{chain: c}
	r.agent.host, _ = netip.ParseAddr(u.Hostname())
	r.script(ctx, document{u: u, required: true})
	if len(r.unknown) > 0 {
		c.find("url-unknown", "the script has URLs that only the machine itself can complete, which were not followed: %s",
			strings.Join(r.unknown[:min(len(r.unknown), mostScripts)], " "))
	}
	if r.asked > mostURLs {
		c.find("many-urls", "of the script's %d URLs the first %d were asked for", r.asked, mostURLs)
	}
	if !r.loads && len(r.seen) > 0 && len(r.ends) > 0 {
		c.find("no-kernel", "the script loads no kernel: it ends with %s, or waits for a person", strings.Join(r.ends,
			", "))
	}
	c.services(ctx, r.agent)
}

// ipxeAsked tells whether the loader is one that wants to be told more: an iPXE by its name.
func (c *chain) ipxeAsked() bool {
	name := strings.ToLower(path(c.boot.File))
	return strings.Contains(name, "ipxe") || strings.Contains(name, "snp") || strings.Contains(name, "undionly")
}

// known are the settings of the machine that iPXE would know.
func (r *reading) known() map[string]string {
	arch := map[uint16]string{0x8664: "x86_64", 0xaa64: "arm64", 0x014c: "i386", 0: "i386",
		0x5064: "riscv64"}[r.Arch.Machine]
	platform := "efi"
	if r.Arch.Machine == 0 {
		platform = "pcbios"
	}
	return map[string]string{
		"mac": r.MAC.String(), "ip": r.order.addr.Addr.Addr().String(), "buildarch": arch, "platform": platform,
		"next-server": r.script0().String(), "gateway": r.order.addr.Router().String(), "filename": r.order.script.File,
		"dhcp-server": r.order.script.Server.String(), "manufacturer": "", "asset": "", "user-class": "iPXE",
	}
}

func (r *reading) script0() netip.Addr {
	if r.order.script.Next.IsValid() {
		return r.order.script.Next
	}
	return r.next
}

// script reads one script and what it names.
func (r *reading) script(ctx context.Context, d document) {
	u := d.u
	if slices.Contains(r.seen, u.String()) {
		r.find("chains-itself", "the script %s leads back to itself", u.Redacted())
		return
	}
	if len(r.seen) >= mostScripts || ctx.Err() != nil {
		return
	}
	r.seen = append(r.seen, u.String())
	r.Progress("reading the script " + u.Redacted())
	text, u, ok := r.text(ctx, d)
	if !ok {
		return
	}
	text, marked := strings.CutPrefix(text, "\ufeff")
	script, err := ipxe.Parse(text, u, r.known())
	if err == nil && marked {
		r.find("byte-order-mark", "%s has an invisible byte order mark (EF BB BF) before #!ipxe: iPXE takes it for no "+
			"script", u.Redacted())
	}
	switch {
	case errors.Is(err, ipxe.ErrNoScript) && d.line > 0:
		r.loads = true // chain may load a program as well
		return
	case err != nil:
		r.find("not-a-script", "%s: %v", u.Redacted(), err)
		return
	}
	r.ends = append(r.ends, script.Ends...)
	for _, command := range script.Commands {
		label := cmp.Or(command.Label, d.label)
		r.command(ctx, command, document{
			u: command.URL, most: begin, required: !command.Optional && label == "",
			line: command.Line, script: u, label: label,
		})
	}
}

// text is a script's text, and the URL behind redirects: iPXE resolves what the script names against that one.
func (r *reading) text(ctx context.Context, d document) (text string, from *url.URL, ok bool) {
	u := d.u
	if u.Scheme == "tftp" {
		server, err := netip.ParseAddr(u.Hostname())
		if err != nil {
			r.find("not-followed", "the script %s was not read: its server is a name", u.Redacted())
			return "", nil, false
		}
		p := r.byTFTP(ctx, server, strings.TrimPrefix(u.Path, "/"))
		if p == nil {
			return "", nil, false
		}
		return string(p.content), u, true
	}
	d.what, d.most = "script", mostScript
	a := r.document(ctx, d)
	if a == nil {
		return "", nil, false
	}
	if len(a.Body) >= mostScript {
		r.find("not-a-script", "%s is longer than %d KiB", u.Redacted(), mostScript>>10)
		return "", nil, false
	}
	return string(a.Body), a.URL, true
}

// command asks for what a command loads.
func (r *reading) command(ctx context.Context, c ipxe.Command, d document) {
	if d.label == "" && slices.Contains([]string{"kernel", "chain", "imgexec", "boot"}, c.Verb) {
		r.arguments(c.Args)
	}
	if c.URL == nil {
		if c.Open != "" {
			r.unknown = append(r.unknown, c.Open)
			r.loads = r.loads || c.Verb == "kernel" || c.Verb == "chain"
		}
		return
	}
	if r.asked++; r.asked > mostURLs || ctx.Err() != nil {
		return
	}
	switch {
	case c.URL.Scheme == "tftp" && c.Verb != "chain":
		r.loads = true
		if server, err := netip.ParseAddr(c.URL.Hostname()); err == nil && c.URL.Port() == "" {
			r.byTFTP(ctx, server, strings.TrimPrefix(c.URL.Path, "/"))
		}
		return
	case c.Verb == "chain":
		r.script(ctx, d)
		return
	}
	r.loads = r.loads || c.Verb == "kernel" || c.Verb == "sanboot" || c.Verb == "boot" || c.Verb == "shim"
	what := c.Verb
	if what == "imgfetch" || what == "module" || what == "imgload" {
		what = "file"
	}
	d.what = what
	r.Progress(fmt.Sprintf("asking for the %s %s", what, c.URL.Redacted()))
	a := r.document(ctx, d)
	if a == nil {
		return
	}
	if isPage(a) {
		r.note(d, "page-for-file", "%s is a page of HTML (%d bytes, %s): it begins with %q. "+
			"Most likely the file is not there, and the server answers with a page in its place", d, a.Size,
			cmp.Or(a.Type, "no content type"), a.Body[:min(len(a.Body), excerpt)])
		return
	}
	r.whole(ctx, d, a)
	if a.Status == 200 && a.Size == 0 {
		r.note(d, "file-torn", "%s is empty", d)
	}
	if c.Verb == "kernel" {
		r.kernel(d, a)
	}
}

// isPage tells whether a document is HTML for certain: kernels, and initramfs however they are packed, have no "<" at
// their begin, and XML is a file like others.
func isPage(a *web.Answer) bool {
	text := strings.ToLower(strings.TrimSpace(strings.TrimPrefix(string(a.Body), "\ufeff")))
	return strings.HasPrefix(text, "<!doctype html") || strings.HasPrefix(text, "<html") ||
		strings.HasPrefix(text, "<") && strings.HasPrefix(a.Type, "text/html")
}

// kernel judges a kernel by its begin.
func (r *reading) kernel(d document, a *web.Answer) {
	if why := r.Arch.RunsKernel(a.Body); why != "" {
		r.note(d, "wrong-architecture", "%s does not run on %s: %s", d, r.Arch.Name, why)
	}
}

// arguments reads what the kernel's arguments tell the agent.
func (r *reading) arguments(args string) {
	for word := range strings.FieldsSeq(args) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "grpc_authority":
			r.agent.grpc = value
		case "syslog_host":
			r.agent.syslog = value
		case "tinkerbell_tls":
			r.agent.tls = value == "true"
		}
	}
}
