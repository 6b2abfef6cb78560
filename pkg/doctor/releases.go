package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/linux"
	"github.com/tinkerbell/stack/pkg/doctor/web"
)

// mostInitrd is how much of an initrd is read for the releases of its modules, in bytes.
const mostInitrd = 3 << 20

// releases are what the kernels of the default way through scripts are, and what their initrds have modules for.
type releases struct {
	kernels, modules []string
	initrd           document // with the modules
}

// release keeps what a file says of its release. An initrd is read for it where it can be: not what is packed by other
// than gzip, nor without a kernel that says its own.
func (r *reading) release(ctx context.Context, d document, a *web.Answer) {
	began := time.Now()
	if d.what == "kernel" {
		if release := linux.Release(a.Body); release != "" {
			r.of.kernels = append(r.of.kernels, release)
			r.step(began, "release of the kernel", a.URL.Redacted(), release)
		}
		return
	}
	if len(r.of.kernels) == 0 || d.what != "initrd" {
		return
	}
	modules, more := linux.Modules(a.Body)
	if more && r.path.hole == 0 {
		a := r.client().Get(ctx, a.URL, mostInitrd) // a part tells, too
		modules, _ = linux.Modules(a.Body)
		r.step(began, "modules of the initrd", a.URL.Redacted(), fmt.Sprintf("in the first %d bytes: %s", len(a.Body),
			orNone(modules)))
	}
	if len(modules) > 0 {
		r.of.modules, r.of.initrd = append(r.of.modules, modules...), d
	}
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// judgeReleases says that no initrd has modules for the kernel, where some have for others.
func (r *reading) judgeReleases() {
	fits := func(release string) bool { return slices.Contains(r.of.modules, release) }
	if len(r.of.kernels) == 0 || len(r.of.modules) == 0 || slices.ContainsFunc(r.of.kernels, fits) {
		return
	}
	r.find("modules-of-another", "%s has, as far as it was read, modules for Linux %s alone, and the kernel is %s: it "+
		"finds none for its network and disks", r.of.initrd, list(r.of.modules), list(r.of.kernels))
}
