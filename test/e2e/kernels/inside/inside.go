// Package inside has the cases of package kernels: its tests run in a guest. Elsewhere they are skipped.
package inside
