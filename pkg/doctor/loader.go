package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/offer"
	"github.com/tinkerbell/stack/pkg/doctor/web"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/tftp"
)

const (
	tftpPort = 69
	// tftpWait is how long a server may take for a datagram, which is sent three times.
	tftpWait = 1500 * time.Millisecond
	// compared is how much of a loader is read, in bytes.
	compared = 64 << 10
	// patience is how long a server may be silent on a connection.
	patience = 4 * time.Second
)

// program is a loader as far as it was read.
type program struct {
	content []byte
	size    int64 // of the whole; -1: not known
	from    string
}

// loader fetches what firmware starts first, the way that firmware does, and compares it with the other way's.
func (c *chain) loader(ctx context.Context) {
	if c.boot == nil {
		return
	}
	first := c.fetch(ctx, c.boot)
	if first == nil {
		c.judgeNext(c.boot)
		return
	}
	if why := c.Arch.Starts(first.content); why != "" {
		c.find("wrong-architecture", "%q from %s does not start as %s: %s", path(c.boot.File), first.from, c.Arch.Name, why)
	}
	if c.other == nil || path(c.other.File) != path(c.boot.File) || c.path.hole > 0 {
		return
	}
	second := c.fetch(ctx, c.other)
	if second == nil {
		return
	}
	shared := min(len(first.content), len(second.content))
	at := -1
	for i := range shared {
		if first.content[i] != second.content[i] {
			at = i
			break
		}
	}
	switch {
	case first.size >= 0 && second.size >= 0 && first.size != second.size:
		c.find("copies-differ", "%q has %d bytes from %s and %d from %s", path(c.boot.File), first.size, first.from,
			second.size,
			second.from)
	case at >= 0:
		c.find("copies-differ", "%q from %s and from %s differ from byte %d", path(c.boot.File), first.from, second.from,
			at)
	default:
		c.step(time.Now(), "compared", path(c.boot.File), fmt.Sprintf("first %d bytes equal, of %d", shared, first.size))
	}
}

// judgeNext says why the file could not be had, where the OFFER does not say in siaddr where it is.
func (c *chain) judgeNext(o *offer.Offer) {
	if !o.Itself || o.Name == o.Server.String() {
		return
	}
	given := "none is given at all"
	if o.Name != "" {
		given = fmt.Sprintf("it is given as option 66 alone, %s, which UEFI does not read", o.Name)
	}
	c.find("no-next-server", "the OFFER of %s has no next server in siaddr (0.0.0.0); %s: UEFI asks the DHCP server %s "+
		"itself, from which %q could not be had", o.Server, given, o.Server, o.File)
}

// fetch reads the begin of a loader; nil: it could not be had, which has been said.
func (c *chain) fetch(ctx context.Context, o *offer.Offer) *program {
	u := o.URL()
	if u == nil {
		return c.byTFTP(ctx, o.Next, o.File)
	}
	switch u.Scheme {
	case "tftp":
		server, err := netip.ParseAddr(u.Hostname())
		if err != nil {
			c.find("name-not-resolved", "%q names its server: firmware that asks by TFTP has no name server", o.File)
			return nil
		}
		return c.byTFTP(ctx, server, strings.TrimPrefix(u.Path, "/"))
	case "http", "https":
		answer := c.document(ctx, document{u: u, what: "loader", most: compared, required: true})
		if answer == nil {
			return nil
		}
		return &program{content: answer.Body, size: answer.Size, from: "HTTP"}
	}
	c.find("not-followed", "%q was not looked at: the doctor speaks TFTP and HTTP", o.File)
	return nil
}

// byTFTP asks for a file with each size of blocks.
func (c *chain) byTFTP(ctx context.Context, server netip.Addr, file string) *program {
	if server == c.next && c.hop == (frame.MAC{}) {
		return nil // nobody is there, which has been said
	}
	const full, window, small, middle, few = 1468, 4, 512, 1024, 8
	const fullPacket = 1500
	to := netip.AddrPortFrom(server, tftpPort)
	c.Progress(fmt.Sprintf("asking %s for %q by TFTP", to, file))
	probe := tftp.Ask{File: file, Block: full, Window: window, Size: true}
	began := time.Now()
	first := c.read(ctx, to, probe)
	if first.Err != nil && !errors.Is(first.Err, tftp.ErrStalled) {
		c.judgeTFTP(began, to, file, first)
		return nil
	}
	if names := first.Uninvited(probe); len(names) > 0 {
		c.find("tftp-options", "%s grants options that nobody asked for (%s): UEFI gives up", to, strings.Join(names, ", "))
	}
	asks := []tftp.Ask{
		{File: file, Block: full, Window: window, Size: true, Most: compared},
		{File: file, Block: full, Most: few * full},
		{File: file, Block: middle, Most: few * middle},
		{File: file, Most: few * small},
	}
	answers := make([]tftp.Answer, len(asks))
	var all sync.WaitGroup
	for i, ask := range asks {
		all.Go(func() { answers[i] = c.read(ctx, to, ask) })
	}
	all.Wait()
	repeats := c.again(ctx, to, asks, answers)
	large, plain := answers[0], answers[len(answers)-1]
	for i, a := range answers {
		said := fmt.Sprintf("%d bytes", len(a.Content))
		if a.Err != nil {
			said = a.Err.Error()
		}
		c.step(began, fmt.Sprintf("TFTP, blocks of %s, window %s", orPlain(asks[i].Block), orOne(a.Options["windowsize"])),
			fmt.Sprintf("%s %q", to, file), said)
	}
	switch {
	case large.Err == nil && plain.Err == nil:
		if repeats > 0 {
			c.find("lost-packets", "%d datagrams of TFTP with %s had to be sent again", repeats, to)
		}
		return &program{content: large.Content, size: max(large.Size, first.Size), from: "TFTP"}
	case large.Err != nil && plain.Err == nil && errors.Is(large.Err, tftp.ErrStalled):
		switch {
		case c.path.passes >= fullPacket: // echoes of that size came back
			c.find("loader-stalled", "%s sends %q with blocks of 512 bytes, and with blocks of %d it begins and does not "+
				"go on: %v", to, file, full, large.Err)
		case c.path.told > 0:
			passes := small
			if answers[2].Err == nil {
				passes = middle
			}
			c.find("fragments-lost", "%s sends %q with blocks of %d bytes, and with blocks of %d, packets of %d, nothing "+
				"comes, neither whole nor in fragments: the way takes packets of %d bytes, as a router says", to, file, passes,
				full, fullPacket, c.path.told)
		case c.path.hole == 0:
			c.find("mtu-hole", "TFTP with %s stalls with blocks of %d bytes and passes with 512: large packets are lost "+
				"in silence",
				to, full)
		}
		return &program{content: plain.Content, size: first.Size, from: "TFTP"}
	case large.Err == nil:
		return &program{content: large.Content, size: max(large.Size, first.Size), from: "TFTP"}
	}
	if port := plain.From.Port(); stuck(answers) && c.path.hole == 0 && port != tftpPort {
		sizes := "blocks of 512 bytes stall as large ones do"
		if c.path.passes > 0 {
			sizes = fmt.Sprintf("it is not their size, since %d bytes pass", c.path.passes)
		}
		c.find("tftp-answers-lost", "%s answers the request for %q, and nothing comes after that first answer, whatever "+
			"the size of blocks (%s): what goes to the server's port %d is dropped, as by a firewall that lets "+
			"69/udp alone pass",
			to, file, sizes, port)
		return nil
	}
	c.judgeTFTP(began, to, file, plain)
	return nil
}

// stuck tells whether every transfer stopped behind the server's first answer.
func stuck(answers []tftp.Answer) bool {
	return !slices.ContainsFunc(answers, func(a tftp.Answer) bool { return !a.Stuck() })
}

// again asks once more, and alone, for what did not go well when all was asked at one time: a server may have been
// busy for a moment. It returns how many datagrams had to be sent again even then.
func (c *chain) again(ctx context.Context, to netip.AddrPort, asks []tftp.Ask, answers []tftp.Answer) (repeats int) {
	if c.path.hole > 0 || stuck(answers) {
		return 0 // that is why
	}
	for i := range answers {
		stalled := errors.Is(answers[i].Err, tftp.ErrStalled) && c.path.told == 0 // a way that takes less is why, too
		if answers[i].Repeats > 0 && (answers[i].Err == nil || stalled) {
			if anew := c.read(ctx, to, asks[i]); anew.Err == nil {
				answers[i] = anew
				repeats += anew.Repeats
			}
		}
	}
	return repeats
}

func orPlain(block int) string {
	if block == 0 {
		return "512 (no option)"
	}
	return fmt.Sprint(block)
}

func orOne(window string) string {
	if window == "" {
		return "1"
	}
	return window
}

// read asks once.
func (c *chain) read(ctx context.Context, to netip.AddrPort, ask tftp.Ask) tftp.Answer {
	conn, err := c.way.ListenPacket()
	if err != nil {
		return tftp.Answer{Err: err, Size: -1, Code: -1}
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer c.link.Refused(c.addr, to, func() { cancel(tftp.ErrRefused) })()
	a := tftp.Read(ctx, conn, to, ask, tftpWait)
	if a.Err != nil && errors.Is(context.Cause(ctx), tftp.ErrRefused) {
		a.Err = tftp.ErrRefused
	}
	return a
}

// judgeTFTP says why a file could not be had by TFTP, which was asked for at a time.
func (c *chain) judgeTFTP(began time.Time, to netip.AddrPort, file string, a tftp.Answer) {
	said := a.Message
	if a.Err != nil {
		said = strings.TrimSpace(a.Err.Error() + " " + a.Message)
	}
	c.step(began, "TFTP", fmt.Sprintf("%s %q", to, file), said)
	const notFound, violation, illegal, refusedOptions = 1, 2, 4, 8
	switch {
	case errors.Is(a.Err, tftp.ErrRefused):
		c.find("tftp-refused", "nothing listens on %s (port unreachable): %q cannot be had", to, file)
	case a.Strange.IsValid():
		c.find("tftp-other-address", "%s was asked for %q, and %s answered: firmware drops that", to, file, a.Strange)
	case errors.Is(a.Err, tftp.ErrSilent):
		c.silentTFTP(to, file)
	case errors.Is(a.Err, tftp.ErrStalled):
		c.find("loader-stalled", "%s begins to send %q and does not go on: %v", to, file, a.Err)
	case a.Code == notFound && len(a.Content) == 0:
		c.find("not-found", "%q is not at %s (TFTP error 1: %s)", file, to, a.Message)
	case a.Code == violation:
		c.find("forbidden", "%q may not be read at %s (TFTP error 2: %s)", file, to, a.Message)
	case a.Code == refusedOptions || a.Code == illegal:
		c.find("tftp-options", "%s refuses a request with options (TFTP error %d: %s): firmware that does not ask "+
			"again without "+
			"them fails", to, a.Code, a.Message)
	case a.Code >= 0:
		c.find("server-error", "%s answers the request for %q by TFTP error %d: %s", to, file, a.Code, a.Message)
	default:
		c.find("tftp-options", "%s answers the request for %q against the rules: %v", to, file, a.Err)
	}
}

// silentTFTP tells a host that is silent from a port that is.
func (c *chain) silentTFTP(to netip.AddrPort, file string) {
	if why := c.whyReturned(to); why != "" {
		c.find("unreachable", "nothing came to the requests for %q: %s", file, why)
		return
	}
	if !c.alive(to.Addr()) {
		c.find("host-silent", "%s does not answer at all, by way of %s: nothing came to the requests for %q either",
			to.Addr(),
			c.hop, file)
		return
	}
	c.find("tftp-silent", "no answer from %s to the request for %q, though the host answers: requests to 69/udp are "+
		"dropped on "+
		"the way, or the answers, which may come from other ports", to, file)
}

// alive tells whether a host of this network is there, or one elsewhere answers anything: echo requests, or
// connections.
func (c *chain) alive(host netip.Addr) bool {
	if c.order.addr.Addr.Masked().Contains(host) {
		return true // it answered ARP
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if len(c.link.Echo(ctx, c.addr, host, c.hop, sizes[:1], time.Second).Passed) > 0 {
		return true
	}
	conn, err := c.way.DialContext(ctx, "tcp", netip.AddrPortFrom(host, 80).String())
	if err == nil {
		_ = conn.Close()
	}
	return err == nil || strings.Contains(err.Error(), "refused")
}

// document is a document that something is to load.
type document struct {
	u        *url.URL
	what     string
	most     int64 // of its bytes that are of interest
	required bool
	line     int // of the script that names it; 0: none does
	script   *url.URL
	label    string // that nothing on the default way through the script leads to
}

// reader is the program that loads it.
func (d document) reader() string {
	if d.what == "loader" {
		return "firmware"
	}
	return "iPXE"
}

// String is the document with the line that names it.
func (d document) String() string { return d.named(d.u) }

// named is the same with the URL that answered.
func (d document) named(u *url.URL) string {
	switch name := fmt.Sprintf("the %s %s", d.what, u.Redacted()); {
	case d.line == 0:
		return name
	case d.label != "":
		return fmt.Sprintf("line %d of the script %s (behind the label %s, to which nothing on the default way leads): %s",
			d.line, d.script.Redacted(), d.label, name)
	default:
		return fmt.Sprintf("line %d of the script %s: %s", d.line, d.script.Redacted(), name)
	}
}

// document asks for a document, and says what is wrong; nil: it could not be had.
func (c *chain) document(ctx context.Context, d document) *web.Answer {
	began := time.Now()
	if why := c.isMute(d); why != "" {
		c.step(began, "HTTP, "+d.what, d.u.Redacted(), "not asked: "+why)
		return nil
	}
	client := c.client()
	a := client.Get(ctx, d.u, d.most)
	missing := false // the server's host, which has been said
	if c.path.hole == 0 && mayHavePassed(a.Err) && ctx.Err() == nil {
		host, lonely := c.lonely(ctx, &a)
		if lonely && c.reroute != nil {
			c.reroute(host)
		}
		a = client.Get(ctx, d.u, d.most)
		if lonely {
			missing = c.judgeMask(d, host, &a)
		}
	}
	c.setMute(d, &a)
	if a.Status == 416 { // it is empty, or ranges are not what the server makes of them
		a = client.Whole(ctx, d.u, d.most)
	}
	said := fmt.Sprintf("%d, %d bytes", a.Status, a.Size)
	if read := int64(len(a.Body)); a.Size > read && read > 0 {
		said = fmt.Sprintf("%d, the first %d bytes of %d", a.Status, read, a.Size)
	}
	if a.Err != nil {
		said = a.Err.Error()
	}
	if errors.Is(a.Err, web.ErrNoConn) && !c.near(a.Addr.Addr()) && !c.gateway().IsValid() {
		said = "not asked: no router leads there"
	}
	if a.Hops > 0 {
		said = fmt.Sprintf("redirected to %s: %s", a.URL.Redacted(), said)
	}
	c.step(began, "HTTP, "+d.what, d.u.Redacted(), said)
	c.judgeTLS(d, &a)
	c.judgeClock(&a)
	if missing || !c.judgeHTTP(d, &a) {
		return nil
	}
	return &a
}

// lonely tells whether an answer is missing because its server is by the offered mask on the machine's own link, and
// nobody there has its address.
func (c *chain) lonely(ctx context.Context, a *web.Answer) (host netip.Addr, lonely bool) {
	host, err := netip.ParseAddr(a.URL.Hostname())
	if err != nil || !host.Is4() || host == c.next || !errors.Is(a.Err, web.ErrSilent) || !c.near(host) {
		return host, false
	}
	return host, len(c.link.Owners(ctx, []netip.Addr{host}, pause)[host]) == 0
}

// judgeMask says why nobody on the link has a server's address, by what came of asking it by way of the router. It
// reports whether there is no answer that way either.
func (c *chain) judgeMask(d document, host netip.Addr, a *web.Answer) (missing bool) {
	name := "address-without-owner"
	if !d.required {
		name = "optional-missing"
	}
	text := fmt.Sprintf("%s: by the offered mask /%d the machine asks for %s on its own link, and nobody there "+
		"answers", d, c.order.addr.Addr.Bits(), host)
	if a.Err == nil || errors.Is(a.Err, web.ErrRefused) {
		c.find("mask-too-wide", "%s; by way of the router %s it answers: the mask (option 1) is too wide", text,
			c.gateway())
		return false
	}
	why := "the mask (option 1) is too wide, or the host is missing"
	if c.reroute == nil {
		why = "the host is missing, or its address is wrong"
	}
	c.find(name, "%s: %s", text, why)
	return true
}

// mayHavePassed tells an error that a lost packet may have made, which is worth another try.
func mayHavePassed(err error) bool {
	return err != nil && !slices.ContainsFunc([]error{
		web.ErrScheme, web.ErrName, web.ErrForeign, web.ErrLoop, web.ErrTooFar, web.ErrRefused, web.ErrPlain,
		web.ErrHandshak,
	}, func(sure error) bool { return errors.Is(err, sure) })
}

// isMute is why a document's server is not asked again: it was not there, which has been said as it matters for this
// document; empty: it is asked.
func (c *chain) isMute(d document) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mute[d.u.Host]
	if d.required && !m.required {
		return ""
	}
	return m.why
}

// setMute keeps in mind that a server is not there, where an answer says so.
func (c *chain) setMute(d document, a *web.Answer) {
	var why string
	switch {
	case errors.Is(a.Err, web.ErrSilent):
		why = "nothing is answered there"
	case errors.Is(a.Err, web.ErrName):
		why = "the name is not known"
	case errors.Is(a.Err, web.ErrRefused):
		why = "nothing listens there"
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mute[a.URL.Host] = mute{why, d.required}
}

func (c *chain) client() *web.Client {
	o := c.order.addr
	return &web.Client{
		Way: c.way, DNS: slices.Clone(o.DNS), Search: o.Search, CA: c.CA, Patience: patience, MostTLS: tls.VersionTLS12,
	}
}
