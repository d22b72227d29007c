"""The write-ahead log of one vnode: records, segments, group commit, readers, retention. Knows no tables."""
