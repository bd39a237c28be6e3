package main

import (
	"container/heap"
	"time"
)

// wait is one stream that waits.
type wait struct {
	stream uint32
	end    time.Time
	// aborted says whether an abort follows.
	aborted bool
	// place is where it stands in the heap.
	place int
}

// waiting has the streams that wait, in the order in which their waits end: Proxy-Wasm has no timer for a
// stream, only one tick for all of a configuration.
type waiting struct {
	byEnd    byEnd
	byStream map[uint32]*wait
}

func (w *waiting) empty() bool {
	return len(w.byEnd) == 0
}

// add says that stream waits until end, and then goes on, or is aborted.
func (w *waiting) add(stream uint32, end time.Time, aborted bool) {
	if w.byStream == nil {
		w.byStream = map[uint32]*wait{}
	}
	entry := &wait{stream: stream, end: end, aborted: aborted}
	w.byStream[stream] = entry
	heap.Push(&w.byEnd, entry)
}

// remove says that stream waits no more, if it did.
func (w *waiting) remove(stream uint32) {
	if entry, found := w.byStream[stream]; found {
		delete(w.byStream, stream)
		heap.Remove(&w.byEnd, entry.place)
	}
}

// takeDue has the streams whose wait is over; they wait no more.
func (w *waiting) takeDue(now time.Time) (due []*wait) {
	for !w.empty() && !w.byEnd[0].end.After(now) {
		entry := w.byEnd[0]
		w.remove(entry.stream)
		due = append(due, entry)
	}
	return due
}

// byEnd is a heap.
type byEnd []*wait

func (h byEnd) Len() int           { return len(h) }
func (h byEnd) Less(i, j int) bool { return h[i].end.Before(h[j].end) }

func (h byEnd) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *byEnd) Push(entry any) {
	added := entry.(*wait)
	added.place = len(*h)
	*h = append(*h, added)
}

func (h *byEnd) Pop() any {
	last := len(*h) - 1
	entry := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return entry
}
