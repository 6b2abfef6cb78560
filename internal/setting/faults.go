package setting

// Faults are the errors that errors.Join has put together, however deep; none of nil.
func Faults(err error) (all []error) {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, each := range joined.Unwrap() {
		all = append(all, Faults(each)...)
	}
	return all
}
