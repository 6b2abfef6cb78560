package bootfile

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/artifacts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// release makes a generation as fetch does, of files below "boot" whose content is their release's name.
func release(t *testing.T, volume, name string, listed ...string) {
	t.Helper()
	manifest := &artifacts.Manifest{Files: map[string]artifacts.File{"vmlinuz": {Size: 1}}}
	for _, file := range listed {
		path := filepath.Join(volume, name, "boot", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		manifest.Files["boot/"+file] = artifacts.File{Size: int64(len(name))}
	}
	text, err := manifest.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(volume, name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volume, name, artifacts.ManifestName), text, 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(volume, "current")
	_ = os.Remove(link + ".new")
	if err := errors.Join(os.Symlink(name, link+".new"), os.Rename(link+".new", link)); err != nil {
		t.Fatal(err)
	}
}

// content reads a file whole, waiting for the disk where that is needed.
func content(t *testing.T, f *File) (string, error) {
	t.Helper()
	b := make([]byte, f.Size())
	err := f.Read(b, 0)
	if errors.Is(err, ErrWait) {
		done := make(chan error)
		f.Load(b, 0, func(err error) { done <- err })
		err = <-done
	}
	return string(b), err
}

func (d *Directory) text(t *testing.T, client, name string, now time.Time) string {
	t.Helper()
	f := d.Find(netip.MustParseAddr(client), name, now)
	if f == nil {
		return "none"
	}
	defer f.Close()
	text, err := content(t, f)
	if err != nil {
		return "unreadable"
	}
	return text
}

func TestReleases(t *testing.T) {
	volume := t.TempDir()
	d := New(Config{Directory: filepath.Join(volume, "current"), Path: "boot/"})
	now := time.Now()
	if d.look(now, true); d.Ready() {
		t.Error("ready without a directory")
	}
	release(t, volume, "first", "shim.efi", "grub.efi", "gone.efi")
	if d.look(now, true); !d.Ready() {
		t.Fatal("not ready with a directory")
	}
	if got := d.text(t, "192.0.2.1", "shim.efi", now); got != "first" {
		t.Errorf("got %q", got)
	}
	held := d.Find(netip.MustParseAddr("192.0.2.9"), "grub.efi", now)
	if _, err := content(t, held); err != nil {
		t.Fatal(err)
	}
	release(t, volume, "second!", "shim.efi", "grub.efi", "damaged.efi", "taken.efi")
	damage := filepath.Join(volume, "second!", "boot")
	if err := errors.Join(os.WriteFile(damage+"/damaged.efi", []byte("short"), 0o644),
		os.Remove(damage+"/taken.efi")); err != nil {
		t.Fatal(err)
	}
	d.look(now, false)
	for _, tt := range []struct {
		id, client, file string
		after            time.Duration
		want             string
	}{
		{"F02", "192.0.2.1", "grub.efi", time.Second, "first"},
		{"F02", "192.0.2.1", "gone.efi", 59 * time.Second, "first"},
		{"F01", "192.0.2.2", "grub.efi", time.Second, "second!"},
		{"F01", "192.0.2.2", "gone.efi", time.Second, "none"},
		{"F04", "192.0.2.2", "damaged.efi", time.Second, "unreadable"},
		{"F04", "192.0.2.2", "taken.efi", time.Second, "unreadable"},
		{"F02", "192.0.2.1", "grub.efi", 61 * time.Second, "second!"},
	} {
		if got := d.text(t, tt.client, tt.file, now.Add(tt.after)); got != tt.want {
			t.Errorf("%s: %s gets %q of %s after %s, want %q", tt.id, tt.client, got, tt.file, tt.after, tt.want)
		}
	}
	d.look(now.Add(2*keepFor), false)
	if text, err := content(t, held); text != "first" || err != nil {
		t.Errorf("a file that is held is %q, %v", text, err)
	}
	held.Close()
	release(t, volume, "third")
	if d.look(now, false); !d.Ready() || d.text(t, "192.0.2.3", "shim.efi", now) != "none" {
		t.Error("a release without boot files has some, or is not ready")
	}
	d.Set(Config{})
	if d.text(t, "192.0.2.3", "shim.efi", now) != "none" || !d.Ready() {
		t.Error("found where nothing is to be found")
	}
}

// Names follows the releases, and what is put there by hand.
func TestNamesFollowTheDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		volume := t.TempDir()
		n := NewNames(filepath.Join(volume, "current"), "boot")
		want := func(asked, want string) {
			t.Helper()
			if got, ok := n.Find(asked); ok != (want != "") || ok && got != want {
				t.Errorf("%s is %q, %t; want %q", asked, got, ok, want)
			}
		}
		want("/boot/X.EFI", "")
		release(t, volume, "first", "x.efi")
		time.Sleep(lookEvery)
		want("/boot/X.EFI", "boot/x.efi")
		release(t, volume, "second", "y.efi")
		time.Sleep(lookEvery)
		want("/boot/X.EFI", "")
		want(`\boot\Y.efi`, "boot/y.efi")

		dir := tree(t, "boot/x.efi")
		n = NewNames(dir, "boot")
		want("/boot/X.EFI", "boot/x.efi")
		if err := os.Rename(filepath.Join(dir, "boot", "x.efi"), filepath.Join(dir, "boot", "z.efi")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(listEvery)
		want("/boot/X.EFI", "")
		want("/boot/Z.EFI", "boot/z.efi")
	})
}

func TestRunFollowsTheSettings(t *testing.T) {
	d := New(Config{})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Run(ctx)
	}()
	if !d.Ready() {
		t.Error("waits for nothing")
	}
	d.Set(Config{Directory: tree(t, "a/f", "b/f"), Path: "a"})
	testwait.Until(t, "found", func() bool { return d.text(t, "192.0.2.1", "f", time.Now()) == "a/f" })
	d.Set(Config{Directory: tree(t, "b/f", "c"), Path: "."})
	testwait.Until(t, "found elsewhere", func() bool { return d.text(t, "192.0.2.1", `\B\F`, time.Now()) == "b/f" })
	stop()
	<-done
}

// The name is a view of the datagram that asked: the next one overwrites it while the file is still being opened.
func TestFindDoesNotKeepTheName(t *testing.T) {
	d := New(Config{Directory: tree(t, "one", "two"), Path: "."})
	d.look(time.Now(), true)
	datagram := []byte("one")
	client := netip.MustParseAddr("192.0.2.1")
	for range 2 { // the first time the file is opened, and closed
		f := d.Find(client, unsafe.String(&datagram[0], len(datagram)), time.Now())
		copy(datagram, "two")
		if got, err := content(t, f); got != "one" || err != nil || f.String() != "one" {
			t.Errorf("got %q of %q, %v", got, f, err)
		}
		f.Close()
		d.readers.Wait()
		copy(datagram, "one")
	}
}

// Many read one file by one descriptor, wherever they are in it.
func TestReadersShareAFile(t *testing.T) {
	dir := tree(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := os.WriteFile(filepath.Join(dir, "big"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	d := New(Config{Directory: dir, Path: "."})
	d.look(time.Now(), true)
	first := d.Find(netip.MustParseAddr("192.0.2.1"), "big", time.Now())
	second := d.Find(netip.MustParseAddr("192.0.2.2"), "/BIG", time.Now())
	if first != second {
		t.Error("two files where one is")
	}
	if text, err := content(t, first); text != string(want) || err != nil {
		t.Errorf("got %d bytes, %v", len(text), err)
	}
	first.Close()
	if text, err := content(t, second); text != string(want) || err != nil {
		t.Errorf("after the other one closed: got %d bytes, %v", len(text), err)
	}
	second.Close()
	d.readers.Wait()
	if first.opened.Load().Fd() != ^uintptr(0) {
		t.Error("the descriptor is open still")
	}
}
