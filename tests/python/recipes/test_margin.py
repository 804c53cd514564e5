import sys; sys.path[:0]=['/work/wt/i6b/tests/python/recipes','/work/wt/i6b/tests/python']
import test_recipes as t
def show(printed,steps,share=.8):
    import re,numpy
    l=[float(x) for _,x in re.findall(r"^step (\d+): loss (\S+)", printed, re.M)]
    q=steps//4
    a,b=numpy.mean(l[:q]),numpy.mean(l[-q:]); print("MARGIN",b/a,share,a,b, len(l),file=sys.stderr)
    old(printed,steps,share)
old=t.check_learns; t.check_learns=show

data=t.data
for n in list(vars(t)):
    if n.startswith('test_'): globals()[n]=getattr(t,n)
