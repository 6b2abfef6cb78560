package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tinkerbell/stack/pkg/artifacts"
)

// plan is what a set is to consist of, or why that is not known.
type plan struct {
	set       *Set
	artifacts []artifact
	release   string
	err       error
	// paths are the downloads, by artifact; one that is there already has none.
	paths map[string]string
}

// check looks at every release, downloads what is missing or damaged, and switches. It returns the sets' faults.
type check struct {
	*Fetcher
	volume  *volume
	current *artifacts.Manifest
	damaged map[string]bool // set/artifact
	healing bool
}

func (f *Fetcher) check(ctx context.Context) (map[string]error, error) {
	v := &volume{dir: f.config.Volume, log: f.log}
	if err := v.open(ctx); err != nil {
		f.serving(v.manifest()) // as it was left
		return nil, err
	}
	defer v.close()
	v.collect()
	c := &check{Fetcher: f, volume: v, current: v.manifest(), damaged: map[string]bool{}}
	if err := c.heal(ctx); err != nil {
		return nil, err
	}
	f.serving(c.current)
	plans := c.plan(ctx)
	c.download(ctx, plans)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := c.replace(ctx, plans); err != nil {
		return nil, err
	}
	f.serving(c.current)
	faults := map[string]error{}
	for _, p := range plans {
		if p.err != nil {
			faults[p.set.Name] = p.err
		}
	}
	if len(faults) == 0 {
		v.clearPartial()
	}
	return faults, nil
}

// heal finds damaged files and takes them away.
func (c *check) heal(ctx context.Context) error {
	damaged, err := c.volume.verify(ctx, c.current)
	if err != nil {
		return err
	}
	for _, name := range damaged {
		file := c.current.Files[name]
		c.damaged[file.Set+"/"+file.Artifact] = true
		c.healing = true
		delete(c.current.Files, name)
		c.metrics.healed.Inc()
		if err := c.volume.remove(name); err != nil {
			return err
		}
	}
	return nil
}

// plan asks the releases what they have.
func (c *check) plan(ctx context.Context) []*plan {
	plans := make([]*plan, len(c.config.Sets))
	var asking sync.WaitGroup
	for i := range c.config.Sets {
		p := &plan{set: &c.config.Sets[i], paths: map[string]string{}}
		plans[i] = p
		asking.Go(func() {
			c.setState(p.set.Name, StateFetching, nil)
			if p.artifacts, p.err = c.resolve(ctx, p.set); p.err != nil {
				return
			}
			p.release = releaseOf(p.artifacts)
		})
	}
	asking.Wait()
	return plans
}

// resolve lists a set's artifacts.
func (c *check) resolve(ctx context.Context, s *Set) ([]artifact, error) {
	if len(s.Files) > 0 {
		list := make([]artifact, 0, len(s.Files))
		for _, file := range s.Files {
			d, err := parseDigest(file.Digest)
			if err != nil {
				return nil, fmt.Errorf("failed to read digest of %s: %w", file.name(), err)
			}
			list = append(list, artifact{
				set: s.Name, name: file.name(), url: file.URL, digest: d, extract: file.Extract,
				as: path.Join(s.Path, file.name()),
			})
		}
		return list, nil
	}
	if s.OCI != "" {
		return c.resolveOCI(ctx, s)
	}
	base, err := url.Parse(s.URL)
	if err != nil {
		return nil, fmt.Errorf("failed to parse URL of set %s", s.Name)
	}
	text, err := c.downloader().list(ctx, s.Name, base.JoinPath("checksum.txt").String())
	if err != nil {
		return nil, err
	}
	if s.ChecksumsDigest != "" {
		want, err := parseDigest(s.ChecksumsDigest)
		if err != nil {
			return nil, fmt.Errorf("failed to read digest of checksum.txt: %w", err)
		}
		sum := newHash(want)
		sum.Write(text)
		if got := sumOf(sum, want); got != want {
			return nil, fmt.Errorf("checksum.txt: %w: want %s, got %s", errDigest, want, got)
		}
	}
	sums, err := parseChecksums(text)
	if err != nil {
		return nil, err
	}
	var list []artifact
	chosen := s.choose(sums)
	if err := s.missing(chosen); err != nil {
		return nil, fmt.Errorf("%s: %w, of %d artifacts", base.Redacted(), err, len(sums))
	}
	for _, name := range chosen {
		list = append(list, artifact{
			set: s.Name, name: name, url: base.JoinPath(name).String(), digest: sums[name],
			// Device trees are served as the archives they are, which is how they are asked for.
			extract: extractable(name) && !strings.HasPrefix(name, "dtbs"),
			as:      path.Join(s.directory(name, sums), name),
		})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: %w, of %d artifacts", base.Redacted(), errNoMatch, len(sums))
	}
	return list, nil
}

// key is what must be the same for an artifact's files to be as they should be.
func key(a artifact) string {
	if a.extract {
		return string(a.digest) + " in " + path.Dir(a.as)
	}
	return string(a.digest) + " as " + a.as
}

// have says whether an artifact's files are there, all and whole.
func (c *check) have(a artifact) bool {
	return c.current.Sets[a.set].Artifacts[a.name] == key(a) && !c.damaged[a.set+"/"+a.name]
}

// releaseOf is a digest of what a release consists of.
func releaseOf(list []artifact) string {
	sum := sha256.New()
	for _, a := range list {
		fmt.Fprintf(sum, "%s %s\n", a.name, a.digest)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// download brings what is missing, several at a time. A set ends with its first failure; the others go on.
func (c *check) download(ctx context.Context, plans []*plan) {
	slots := make(chan struct{}, c.config.Parallel)
	var working sync.WaitGroup
	for _, p := range plans {
		if p.err != nil {
			continue
		}
		working.Go(func() { p.err = c.downloadSet(ctx, p, slots) })
	}
	working.Wait()
}

func (c *check) downloadSet(ctx context.Context, p *plan, slots chan struct{}) error {
	group, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	for _, a := range p.artifacts {
		if c.have(a) {
			continue
		}
		group.Go(func() error {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			defer func() { <-slots }()
			start := time.Now()
			one := c.begin(a)
			defer c.end(one)
			file, err := c.downloader().fetch(ctx, a, one)
			if err != nil {
				return err
			}
			c.log.Info("artifact downloaded", "set", a.set, "artifact", a.name, "bytes", one.done.Load(),
				"seconds", time.Since(start).Seconds())
			mu.Lock()
			defer mu.Unlock()
			p.paths[a.name] = file
			return nil
		})
	}
	return group.Wait()
}

// replace makes a generation of what is there and what came, if that differs from what is served.
func (c *check) replace(ctx context.Context, plans []*plan) error {
	if !c.changed(plans) {
		return nil
	}
	staged, err := c.volume.stage()
	if err != nil {
		return err
	}
	defer staged.Close()
	published := false
	defer func() {
		if !published {
			_ = os.RemoveAll(staged.Name())
		}
	}()
	next := &artifacts.Manifest{
		Created: time.Now().UTC(), Sets: map[string]artifacts.Set{}, Files: map[string]artifacts.File{},
	}
	for _, p := range plans {
		if p.err == nil {
			if p.err = c.stageSet(ctx, staged, next, p); p.err == nil {
				continue
			}
			if err := unstage(staged, next, p.set.Name); err != nil {
				return err
			}
		}
		if err := c.carryOver(staged, next, p.set.Name); err != nil {
			return err
		}
	}
	if err := stageBootNames(staged, next); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !c.differs(next) {
		return nil
	}
	if err := c.volume.publish(staged, next); err != nil {
		return err
	}
	published = true
	c.current = next // the next check removes what was served before: some may be reading it still
	c.log.Info("files switched", "files", len(next.Files), "sets", len(next.Sets))
	return nil
}

// changed says whether there may be anything to publish.
func (c *check) changed(plans []*plan) bool {
	configured := map[string]bool{}
	for _, p := range plans {
		configured[p.set.Name] = true
		if p.err != nil {
			continue
		}
		if len(p.paths) > 0 || len(p.artifacts) != len(c.current.Sets[p.set.Name].Artifacts) {
			return true
		}
	}
	for name := range c.current.Sets {
		if !configured[name] {
			return true
		}
	}
	// A version that did not make these names fetched the files.
	return len(bootNames(c.current.Files)) > 0
}

// differs says whether a generation would serve anything else than what is served, or heal it.
func (c *check) differs(next *artifacts.Manifest) bool {
	return c.healing || !maps.Equal(next.Files, c.current.Files) || !maps.EqualFunc(next.Sets, c.current.Sets,
		func(a, b artifacts.Set) bool { return a.Release == b.Release && maps.Equal(a.Artifacts, b.Artifacts) })
}
