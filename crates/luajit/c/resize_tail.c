  if (asize < oldasize)
    t->asize = asize;  /* Note: This 'shrinks' even colocated arrays. */
  reinsertpairs(L, t, oldasize, oldnode, oldhmask);
  /* Physically shrink only separated arrays. */
  if (asize < oldasize && LJ_MAX_COLOSIZE != 0 && t->colo <= 0)
    setmref(t->array, lj_mem_realloc(L, tvref(t->array),
	    oldasize*sizeof(TValue), asize*sizeof(TValue)));
  if (oldhmask > 0)
    lj_mem_freevec(G(L), oldnode, oldhmask+1, Node);
}
