package elect

import (
	"testing"
	"testing/synctest"
	"time"
)

// The API's store is restored from a backup: versions go back. The lease is held again within its time, by a holder
// whose renewals are answered at once as by others that only watch.
func TestVersionsThatGoBack(t *testing.T) {
	for name, test := range map[string]struct {
		back  int
		holds bool          // the backup has the holder of now
		away  time.Duration // the API is, before
	}{
		"the holder's":             {1000, true, 0},
		"after an outage":          {2000, true, 20 * time.Second},
		"of when nobody held it":   {1000, false, 0},
		"nobody's after an outage": {2000, false, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &api{version: 5000}
				n1, n2 := start(t, a, "n1", Default), start(t, a, "n2", Default)
				outage(t, n1, n2)
				time.Sleep(5 * time.Second)
				a.set(func() { a.away = test.away > 0 })
				time.Sleep(test.away)
				a.set(func() {
					a.away = false
					a.version -= test.back
					l := a.lease.DeepCopy()
					if !test.holds {
						l.Spec.HolderIdentity = nil
					}
					a.store(l)
				})
				time.Sleep(2 * Default.Lease)
				for end := time.Now().Add(5 * Default.Lease); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					if n1.owns() == n2.owns() {
						t.Fatalf("n1 has it %v, n2 has it %v, holder %q", n1.owns(), n2.owns(), a.holder())
					}
				}
				a.end(n1, n2)
			})
		})
	}
}

// A holder that nobody disputes goes on while the API is away, gives way at once where somebody does, and does not take
// the lease again but by the API.
func TestHolderGoesOnWithoutTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		n1 := start(t, a, "n1", Default)
		n1.set(func(n *node) { n.undisputed = true })
		outage(t, n1)
		a.set(func() { a.away = true })
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if !n1.owns() {
				t.Fatal("it has given up")
			}
		}
		n1.set(func(n *node) { n.undisputed = false })
		time.Sleep(20 * time.Millisecond)
		if n1.owns() {
			t.Error("it has not given way")
		}
		n1.set(func(n *node) { n.undisputed = true })
		time.Sleep(time.Minute)
		if n1.owns() {
			t.Error("it has the address again, without the API")
		}
		a.set(func() { a.away = false })
		outage(t, n1)
		a.end(n1)
	})
}

// The holder goes on without the API, which is there for another node: that one leaves it the lease for another lease's
// time, as long as it hears the holder.
func TestCandidateLeavesTheLeaseToAHolderThatGoesOn(t *testing.T) {
	for serves, want := range map[bool]time.Duration{true: 2 * Default.Lease, false: Default.Lease} {
		synctest.Test(t, func(t *testing.T) {
			a := &api{}
			n1 := start(t, a, "n1", Default)
			outage(t, n1)
			n2 := start(t, a, "n2", Default)
			n2.set(func(n *node) { n.serves, n.first = serves, false })
			time.Sleep(5500 * time.Millisecond)
			n1.set(func(n *node) { n.stopped = time.Now().Add(time.Minute) })
			began := time.Now()
			for !n2.owns() {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(began); took < want-Default.Retry || took > want+Default.Retry {
				t.Errorf("serves %v: took %v, want %v", serves, took, want)
			}
			if n2.former != "station of n1" {
				t.Errorf("the former station is %q", n2.former)
			}
			a.end(n1, n2)
		})
	}
}
